// The Walsh-Hadamard transform. Every result has the same bits on every SIMD target.
#pragma once

#include <cstddef>
#include <span>

namespace thinwire::kernels {

inline constexpr std::size_t kLeastHadamard = 16;

// values <- H values, where H has entries of 1 and -1 and H H = n: entry (i, j) is -1 where i and j have an odd number of bits in common.
// Pre: their number n is a power of two, at least kLeastHadamard.
void hadamard(std::span<float> values);

// values[i] <- -values[i] where the i-th of packed codes of one bit (codes.h) is set.
void negate_where(std::span<const std::byte> packed, std::span<float> values);

}  // namespace thinwire::kernels
