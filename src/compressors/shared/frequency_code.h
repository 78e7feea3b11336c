// Numbers of few bits by their frequencies, as if neighbours were independent: what a range coder (range_coder.h) takes for them.
//
// Of up to 4 bits several are coded at once, as a byte whose frequency is the product of theirs.
//
// A code: frequencies of 2^bits numbers, f of 4096, as Elias's gamma code of f + 1 (its exponent in unary, a 1, its lower bits; least significant
// bit first), up to a whole byte; four states of a range coder, and its words to the end. With g numbers to a byte, 4 of 1 and 2 bits, 2 of
// 3 and 4 bits, 1 of more, the i-th byte of ceil(n/g) has the numbers i, i + ceil(n/g), ..., the first one lowest; what lies beyond n is any.
// A decoder that ends with other states than it should has still read numbers; one that ends elsewhere in the words refuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire {

// Scratch to write or read so many numbers with.
std::size_t frequency_code_room_bytes(std::size_t count, int bits);

// Pre: numbers below 2^bits, at least one, bits up to 8. Returns the code's length, or 0 if it is not shorter than `to`.
std::size_t write_frequency_code(std::span<const std::uint8_t> numbers, int bits, std::span<std::byte> to, std::span<std::byte> room);

// Throws PayloadError for what is no code of so many numbers. Behind its `length` kFrequencyCodeReadsBeyond bytes may be read.
constexpr std::size_t kFrequencyCodeReadsBeyond = 1280;
void read_frequency_code(const std::byte* code, std::size_t length, int bits, std::span<std::uint8_t> numbers, std::span<std::byte> room);

}  // namespace thinwire
