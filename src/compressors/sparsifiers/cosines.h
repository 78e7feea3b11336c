// The cosine transform (DCT-II, orthonormal) of runs of 64 entries: Ahmed, Natarajan, Rao: "Discrete cosine transform", IEEE Trans.
// Computers C-23, 1974. What is left behind the last run stays as it is. As a product of matrices (kernels/products.h) it has the same bits
// everywhere.
#pragma once

#include <cstddef>
#include <span>

namespace thinwire::cosines {

inline constexpr std::size_t kRun = 64;

// No sum leaves the range of floats if no entry is above kLargest: then no coefficient is above 8 times that, to rounding; and whatever
// coefficients are up to kLargestCoefficient, no entry is infinite.
inline constexpr float kLargest = 0x1p120F, kLargestCoefficient = 0x1p124F;
// What no entry exceeds if no coefficient exceeds `coefficient`.
inline float largest_entry(float coefficient) { return 12 * coefficient; }  // 64 of them, times sqrt(2/64)

// to <- the transform of `from`, or what that is the transform of. Pre: both have the same length, and are different memory.
void transform(std::span<const float> from, std::span<float> to);
void transform_back(std::span<const float> from, std::span<float> to);

}  // namespace thinwire::cosines
