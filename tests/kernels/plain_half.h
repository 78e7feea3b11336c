// The 16-bit formats by their definition, in double precision.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace thinwire::kernels {

struct HalfFormat {
  std::string name;
  int mantissa_bits;
  int smallest_exponent;  // of normal numbers

  int bias() const { return 1 - smallest_exponent; }
  unsigned infinity() const { return ((2U * static_cast<unsigned>(bias())) + 1) << mantissa_bits; }

  double decode(std::uint16_t half) const {
    const unsigned magnitude = half & 0x7FFFU;
    const double sign = half & 0x8000U ? -1 : 1;
    if (magnitude > infinity()) return std::numeric_limits<double>::quiet_NaN();
    if (magnitude == infinity()) return sign * std::numeric_limits<double>::infinity();
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const double mantissa = magnitude & ((1U << mantissa_bits) - 1);
    const double leading = exponent == 0 ? 0 : std::ldexp(1, mantissa_bits);
    return sign * std::ldexp(leading + mantissa, std::max(exponent, 1) - bias() - mantissa_bits);
  }

  // The number of last places from zero to |x|, rounded: consecutive halves have consecutive numbers.
  std::uint16_t encode(double x) const {
    const unsigned sign = std::signbit(x) ? 0x8000U : 0;
    const double magnitude = std::fabs(x);
    if (std::isinf(x)) return static_cast<std::uint16_t>(sign | infinity());
    if (magnitude == 0) return static_cast<std::uint16_t>(sign);
    const int exponent = std::max(std::ilogb(magnitude), smallest_exponent);
    const double places = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
    const unsigned half = (static_cast<unsigned>(exponent - smallest_exponent) << mantissa_bits) +
                          static_cast<unsigned>(places);
    return static_cast<std::uint16_t>(sign | std::min(half, infinity()));
  }
};

inline const HalfFormat kBf16{"bf16", 7, -126};
inline const HalfFormat kFp16{"fp16", 10, -14};

inline bool is_nan(const HalfFormat& format, std::uint16_t half) { return (half & 0x7FFFU) > format.infinity(); }

inline void expect_float(float actual, float expected) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(actual)) << actual;
  } else {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(actual), std::bit_cast<std::uint32_t>(expected))
        << actual << " instead of " << expected;
  }
}
inline void expect_half(const HalfFormat& format, std::uint16_t actual, float expected) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(is_nan(format, actual)) << actual;
  } else {
    ASSERT_EQ(actual, format.encode(expected)) << "for " << expected;
  }
}

inline std::vector<std::uint16_t> encoded(const HalfFormat& format, std::span<const float> values) {
  std::vector<std::uint16_t> halves;
  for (const float x : values) {
    halves.push_back(std::isnan(x) ? std::uint16_t{0x7FFF} : format.encode(x));
  }
  return halves;
}

}  // namespace thinwire::kernels
