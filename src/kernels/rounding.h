// Rounding at random: what unbiased quantizers are made of. Every result has the same bits on every SIMD target.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire::kernels {

// Numbers that Philox 4x32 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011) makes of
// consecutive counters go in groups of so many.
inline constexpr std::size_t kWordGroup = 64;
// Its rounds: the paper's recommendation; and the fewest with which it passes BigCrush, enough to decide about rounding, in 6/10 of the time.
inline constexpr int kPhiloxRounds = 10, kRoundingPhiloxRounds = 7;

// words[64 a + 16 b + c] = word b of the block of `key` and of `counter` with 16 a + c added to its first word. The last
// group may be shorter.
void random_words(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key, std::span<std::uint32_t> words);

// What decides how the values `first` to `first` + words.size() of a sequence are rounded. A word, made as by random_words() but with fewer rounds, decides about two of them, of which the
// second one gets it turned by 16 bits: value 32 a + 16 h + c gets word 16 a + c, turned if h is 1. So Philox has half as much to do. What is expected of
// each is exact; whether one of the two is rounded up tells of the other only where the word's upper 16 bits do not decide, once in 2^16.
// Pre: first is a multiple of 16.
void rounding_words(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key, std::size_t first, std::span<std::uint32_t> words);

// levels[i] = values[i] * inverse_step rounded to one of its two neighbours, so that its expectation is exact to 2^-24, and
// clamped to [-limit, limit]. words[i] decides, by its upper 24 bits. Pre: |values[i] * inverse_step| is finite; limit < 2^23.
void round_randomly(std::span<const float> values, float inverse_step, std::int32_t limit,
                    std::span<const std::uint32_t> words, std::span<std::int32_t> levels);

}  // namespace thinwire::kernels
