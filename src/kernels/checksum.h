// A checksum of bytes, the same on every SIMD target. It finds accidents, not forgers: a change within one word of 32 bits is
// always found, and of other changes that are random all but one in 2^32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire::kernels {

// Where every chain of mix_in() begins.
inline constexpr std::uint32_t kChecksumStart = 0x7F4A7C15u;

// The checksum `sum` after one word more. A bijection of the sum for every word, and of the word for every sum: so two chains
// that begin to differ in one word differ until the end.
constexpr std::uint32_t mix_in(std::uint32_t sum, std::uint32_t word) {
  const std::uint32_t x = (sum ^ word) * 0x9E3779B1u;
  return x ^ (x >> 15);
}

// Bytes are words, least significant byte first, in groups of 16; what is missing of the last group is zeros. The l-th words of
// all groups make a chain, and the number of bytes and the 16 chains' ends make one more, whose end is the checksum.
std::uint32_t checksum(std::span<const std::byte> bytes);

}  // namespace thinwire::kernels
