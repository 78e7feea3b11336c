// Kernels of sparse rows and sketches against slow, obvious references.
#include "kernels/rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/every_target.h"
#include "kernels/hash.h"
#include "kernels/inputs.h"

namespace thinwire::kernels {
namespace {

class Rows : public EveryTarget {};

constexpr std::uint16_t kInfinity = 0x7F80;  // of bfloat16

std::vector<float> sparse_rows(std::size_t n, std::size_t row, std::uint32_t seed, double density) {
  std::vector<float> values = normal_values(n, seed);
  std::mt19937 random(seed + 1);
  std::bernoulli_distribution present(density);
  for (std::size_t first = 0; first < n; first += row) {
    if (present(random)) continue;
    std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(first), std::min(row, n - first), 0.0f);
  }
  return values;
}

TEST_P(Rows, MarkWhatIsNotZero) {
  for (const std::size_t row : {1u, 3u, 15u, 16u, 17u, 64u, 300u})
    for (const std::size_t n : kSizes)
      for (const double density : {0.0, 0.1, 1.0}) {
        Buffer<float> values(sparse_rows(n, row, 3, density), 1);
        if (n > 1) values.span()[n / 2] = -0.0f;
        std::vector<std::uint32_t> marks((((n + row - 1) / row) + 31) / 32, 0xFFFFFFFF), expected(marks.size());
        for (std::size_t i = 0; i < n; ++i)
          if (values.span()[i] != 0) expected[i / row / 32] |= 1u << (i / row % 32);
        EXPECT_TRUE(mark_rows(values.span(), row, marks).finite);
        ASSERT_EQ(marks, expected) << row << " a row, " << n << " values";
        std::vector<std::uint16_t> halves(n);
        std::ranges::transform(values.span(), halves.begin(),
                               [](float value) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16); });
        std::ranges::fill(marks, 0xFFFFFFFF);
        EXPECT_TRUE(mark_rows(halves, kInfinity, row, marks).finite);
        ASSERT_EQ(marks, expected) << row << " a row, " << n << " values of 16 bits";
      }
}

TEST_P(Rows, TellZerosWithASignOfEmptyRows) {
  for (const std::size_t at : {5u, 50u, 99u}) {
    std::vector<float> values(100);
    values[70] = 1;
    std::vector<std::uint32_t> marks(1);
    EXPECT_FALSE(mark_rows(values, 20, marks).signed_zeros);
    values[at] = -0.0f;
    EXPECT_TRUE(mark_rows(values, 20, marks).signed_zeros);
    EXPECT_EQ(marks[0], 1u << 3);
    std::vector<std::uint16_t> halves(100);
    halves[70] = 1;
    EXPECT_FALSE(mark_rows(halves, kInfinity, 20, marks).signed_zeros);
    halves[at] = 0x8000;
    EXPECT_TRUE(mark_rows(halves, kInfinity, 20, marks).signed_zeros);
    EXPECT_EQ(marks[0], 1u << 3);
  }
}

TEST_P(Rows, TellWhatIsNotFinite) {
  for (const std::size_t row : {1u, 5u, 16u, 40u})
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()})
      for (const std::size_t at : {0u, 33u, 99u}) {
        std::vector<float> values(100);
        values[at] = bad;
        std::vector<std::uint32_t> marks(4);
        EXPECT_FALSE(mark_rows(values, row, marks).finite);
        EXPECT_EQ(marks[at / row / 32], 1u << (at / row % 32));
        std::vector<std::uint16_t> halves(100);
        halves[at] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(bad) >> 16);
        EXPECT_FALSE(mark_rows(halves, kInfinity, row, marks).finite);
      }
}

TEST_P(Rows, AddScaled) {
  for (const std::size_t n : kSizes) {
    Buffer<float> target(normal_values(n, 1), 1);
    const std::vector<float> before = target.elements(), source = normal_values(n, 2);
    add_scaled(target.span(), source, -0.75f);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(target.span()[i], before[i] + -0.75f * source[i]);
  }
}

float sign_of(std::uint64_t hashed, std::size_t lane) { return (hashed >> lane) & 1 ? -1.0f : 1.0f; }

std::size_t cell_of(std::uint64_t seed, std::size_t group, std::size_t n, std::uint32_t cells) {
  return Permutation(seed, sketch_groups(n))(group) % cells;
}

std::vector<float> reference_sketch(const std::vector<float>& values, std::uint64_t seed, std::uint32_t cells) {
  std::vector<float> table(cells * 16);
  for (std::size_t i = 0; i < values.size(); ++i)
    table[cell_of(seed, i / 16, values.size(), cells) * 16 + i % 16] += sign_of(hash(seed, i / 16), i % 16) * values[i];
  return table;
}

TEST_P(Rows, SketchAddsUp) {
  for (const std::size_t n : kSizes)
    for (const std::uint32_t cells : {1u, 5u, 1000u}) {
      const std::vector<float> values = normal_values(n, 5);
      Buffer<float> table(std::vector<float>(cells * 16));
      const std::uint32_t middle = cells / 2;
      add_to_sketch(values, 42, cells, 0, middle, table.span());
      add_to_sketch(values, 42, cells, middle, cells, table.span());
      ASSERT_EQ(table.elements(), reference_sketch(values, 42, cells)) << n << " values, " << cells << " cells";
    }
}

TEST_P(Rows, SketchEstimatesTheMedian) {
  const std::vector<std::uint64_t> seeds = {11, 22, 33, 44, 55};
  for (const std::size_t rows : {1u, 3u, 5u})
    for (const std::size_t n : {1u, 16u, 1003u}) {
      constexpr std::uint32_t kCells = 9;
      const std::vector<float> values = normal_values(n, 6);
      std::vector<float> tables;
      for (std::size_t t = 0; t < rows; ++t) {
        const std::vector<float> table = reference_sketch(values, seeds[t], kCells);
        tables.insert(tables.end(), table.begin(), table.end());
      }
      std::vector<float> estimates(n);
      const std::size_t part = n / 32 * 16;  // in two calls
      const auto used = std::span(seeds).first(rows);
      const std::size_t groups = sketch_groups(n);
      estimate_from_sketch(tables, used, kCells, groups, 0, {0.25f, 0.5f}, std::span(estimates).first(part));
      estimate_from_sketch(tables, used, kCells, groups, part / 16, {0.25f, 0.5f}, std::span(estimates).subspan(part));
      for (std::size_t i = 0; i < n; ++i) {
        std::vector<float> candidates;
        for (std::size_t t = 0; t < rows; ++t)
          candidates.push_back(sign_of(hash(seeds[t], i / 16), i % 16) * tables[(t * kCells + cell_of(seeds[t], i / 16, n, kCells)) * 16 + i % 16]);
        std::sort(candidates.begin(), candidates.end());
        const bool is_fuller = cell_of(seeds[0], i / 16, n, kCells) < groups % kCells;
        ASSERT_EQ(estimates[i], (is_fuller ? 0.25f : 0.5f) * candidates[rows / 2]) << i;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Targets, Rows, all_targets(), target_name);

}  // namespace
}  // namespace thinwire::kernels
