// The search that a trellis of four states would add to casq:rate='s encoder (bench/rate_variants.py says what it would gain): of each block of
// 128 the levels of the least |error|^2 + price * bits, by Viterbi's algorithm, for as many blocks at once as a vector has lanes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire::bench {

constexpr std::size_t kTrellisBlock = 128, kTrellisGroup = 16, kStates = 4, kClasses = 64;

// What levels cost, in squares of a step: level 0, and each other one `first` and `each` times the level more.
struct LevelPrices {
  float zero, first, each;
};
// Of a class of blocks, by state.
using ClassPrices = std::array<LevelPrices, kStates>;

// Groups of blocks, each block with its class. Levels of a group's blocks lie side by side, as they are found, without signs: no time is spent on
// putting them in order.
void choose_levels(std::span<const float> values, float step, std::span<const std::uint8_t> classes, std::span<const ClassPrices> prices,
                   std::span<std::int16_t> levels);
constexpr std::size_t trellis_index(std::size_t block, std::size_t i) {
  return (block / kTrellisGroup * kTrellisBlock + i) * kTrellisGroup + block % kTrellisGroup;
}

// States 0 and 1 have the even multiples of a step, 2 and 3 the odd ones, and 0.
constexpr int trellis_multiple(int state, int level) { return state < 2 || level == 0 ? 2 * level : 2 * level - 1; }
constexpr int trellis_next(int state, int level) {
  constexpr int kNext[kStates][2] = {{0, 2}, {2, 0}, {1, 3}, {3, 1}};
  return kNext[state][level & 1];
}

}  // namespace thinwire::bench
