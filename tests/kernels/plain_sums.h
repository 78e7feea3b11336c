// What kernels/statistics.h promises of sums and magnitudes, one value after another.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/inputs.h"
#include "kernels/statistics.h"

namespace thinwire::kernels {

// Calls check(values) with every content at every size and at both alignments.
template <class Contents, class Check>
void for_each_input(const Contents& contents, const Check& check) {
  for (const std::size_t n : kSizes) {
    for (const Content& content : contents(n)) {
      for (const std::size_t offset : {0, 1}) {
        SCOPED_TRACE(content.name + ", n=" + std::to_string(n) + ", offset=" + std::to_string(offset));
        check(Buffer<float>(content.values, offset));
      }
    }
  }
}

// The order of sums that the header promises.
template <class T, class Term>
T sum_in_lanes(std::span<const float> values, const Term& term) {
  std::array<T, 16> lanes = {};
  for (std::size_t i = 0; i < values.size(); ++i) lanes[i % 16] += term(values[i]);
  T sum = lanes[0];
  for (std::size_t lane = 1; lane < 16; ++lane) sum += lanes[lane];
  return sum;
}
inline float sum_abs_in_lanes(std::span<const float> values) {
  return sum_in_lanes<float>(values, [](float x) { return std::fabs(x); });
}
inline float sum_squares_in_lanes(std::span<const float> values) {
  return sum_in_lanes<float>(values, [](float x) { return x * x; });
}

inline float largest_of(std::span<const float> values) {
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::fabs(x));
  return largest;
}
inline bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

inline void expect_same_bits(float actual, float expected) {
  EXPECT_EQ(std::bit_cast<std::uint32_t>(actual), std::bit_cast<std::uint32_t>(expected))
      << actual << " instead of " << expected;
}
inline void expect_same_bits(std::span<const float> actual, std::span<const float> expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(actual[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << actual[i] << " instead of " << expected[i] << " at " << i;
  }
}
inline void expect_magnitudes_of(const Magnitudes& actual, std::span<const float> values) {
  EXPECT_TRUE(actual.finite);
  expect_same_bits(actual.largest, largest_of(values));
  expect_same_bits(actual.sum_abs, sum_abs_in_lanes(values));
  expect_same_bits(actual.sum_squares, sum_squares_in_lanes(values));
}
inline void expect_scanned(const Scan& actual, std::span<const float> values) {
  EXPECT_EQ(actual.finite, all_finite(values));
  if (std::any_of(values.begin(), values.end(), [](float x) { return std::isnan(x); }))
    EXPECT_TRUE(std::isnan(actual.largest));
  else
    expect_same_bits(actual.largest, largest_of(values));
}

}  // namespace thinwire::kernels
