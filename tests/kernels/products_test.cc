// Products against sums in double precision, and their bits on every target, in every part of a matrix.
#include "kernels/products.h"

#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "kernels/every_target.h"
#include "kernels/inputs.h"

namespace thinwire::kernels {
namespace {

class Products : public EveryTarget {};

// A matrix of its own numbers, each row followed by some that must stay as they are.
struct Sample {
  static constexpr std::size_t kGap = 3;
  static constexpr float kGuard = 99;

  std::vector<float> numbers;
  std::size_t rows, columns;

  Sample(std::size_t r, std::size_t c, std::uint32_t seed) : numbers(r * (c + kGap), kGuard), rows(r), columns(c) {
    const std::vector<float> values = normal_values(r * c, seed);
    for (std::size_t i = 0; i < r; ++i)
      for (std::size_t j = 0; j < c; ++j) at(i, j) = values[i * c + j];
  }
  float& at(std::size_t i, std::size_t j) { return numbers[i * (columns + kGap) + j]; }
  float at(std::size_t i, std::size_t j) const { return numbers[i * (columns + kGap) + j]; }
  ConstMatrix view() const { return {numbers.data(), rows, columns, columns + kGap}; }
  Matrix view() { return {numbers.data(), rows, columns, columns + kGap}; }
  Sample transposed() const {
    Sample other(columns, rows, 0);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) other.at(j, i) = at(i, j);
    return other;
  }
  bool gaps_are_untouched() const {
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = columns; j < columns + kGap; ++j)
        if (at(i, j) != kGuard) return false;
    return true;
  }
};

struct Shape {
  std::size_t rows, terms, columns;
};

// Around the sizes of tiles, panels and blocks.
const std::vector<Shape> kShapes = {{1, 1, 1},    {1, 5, 16},   {2, 0, 3},   {3, 7, 17},  {7, 64, 4},    {8, 33, 32},   {9, 100, 48},
                                    {12, 3, 49},  {16, 20, 47}, {63, 9, 64}, {65, 36, 96}, {130, 11, 50}, {5, 1024, 33}, {3, 1025, 7},
                                    {2, 2100, 1}, {0, 4, 5},    {4, 5, 0}};

TEST_P(Products, AreWhatDoublePrecisionGives) {
  for (const auto& [rows, terms, columns] : kShapes) {
    const Sample a(rows, terms, 1), b(terms, columns, 2), old(rows, columns, 3);
    const std::vector<float> row = normal_values(columns, 4);
    Sample added = old, added_turned = old.transposed(), set = old, bare = old;
    const PackedMatrix packed(b.view());
    add_product(0.5f, a.view(), packed, added.view());
    add_product(0.5f, a.transposed().view().transpose(), PackedMatrix(b.transposed().view().transpose()), added_turned.view().transpose());
    set_product(-2, a.view(), packed, row, set.view());
    set_product(1, a.view(), packed, {}, bare.view());
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) {
        double sum = 0, size = 1;
        for (std::size_t l = 0; l < terms; ++l) {
          const double term = static_cast<double>(a.at(i, l)) * static_cast<double>(b.at(l, j));
          sum += term;
          size += std::abs(term);
        }
        const double near = 3e-6 * size;
        ASSERT_NEAR(static_cast<double>(added.at(i, j)), static_cast<double>(old.at(i, j)) + 0.5 * sum, near) << rows << " x " << terms << " x " << columns;
        ASSERT_EQ(added_turned.at(j, i), added.at(i, j));
        ASSERT_NEAR(static_cast<double>(set.at(i, j)), static_cast<double>(row[j]) - 2 * sum, near) << rows << " x " << terms << " x " << columns;
        ASSERT_NEAR(static_cast<double>(bare.at(i, j)), sum, near) << rows << " x " << terms << " x " << columns;
      }
    EXPECT_TRUE(added.gaps_are_untouched() && added_turned.gaps_are_untouched() && set.gaps_are_untouched());
  }
}

TEST_P(Products, HaveTheSameBitsOnEveryTargetAndForEveryRowAlone) {
  for (const auto& [rows, terms, columns] : kShapes) {
    const Sample a(rows, terms, 5), b(terms, columns, 6), old(rows, columns, 7);
    const PackedMatrix packed(b.view());
    Sample here = old, there = old, alone = old;
    add_product(0.3f, a.view(), packed, here.view());
    force_target(available_targets().back());
    add_product(0.3f, a.view(), packed, there.view());
    force_target(GetParam());
    EXPECT_EQ(here.numbers, there.numbers) << rows << " x " << terms << " x " << columns;
    for (std::size_t i = 0; i < rows; ++i)
      add_product(0.3f, {&a.numbers[i * (terms + Sample::kGap)], 1, terms, terms}, packed, {&alone.at(i, 0), 1, columns, columns});
    EXPECT_EQ(here.numbers, alone.numbers) << rows << " x " << terms << " x " << columns;
  }
}

TEST_P(Products, WithRowsOfTwoMatricesAreThoseOfOneThatHasBoth) {
  const Sample a(10, 70, 13), b(70, 50, 14);
  const auto rows = [&](std::size_t first, std::size_t last) {
    return ConstMatrix{b.view().data + first * b.view().stride, last - first, b.columns, b.view().stride};
  };
  Sample whole(10, 50, 15), halves = whole;
  add_product(1, a.view(), PackedMatrix(b.view()), whole.view());
  add_product(1, a.view(), PackedMatrix(rows(0, 3), rows(3, 70)), halves.view());
  EXPECT_EQ(whole.numbers, halves.numbers);
  EXPECT_THROW(PackedMatrix(b.view(), a.view()), std::logic_error);
}

// One addition at a time, fused: what any other implementation has to do for the same bits.
TEST_P(Products, SumTermsInTheirOrderInBlocksOfAThousandAndTwentyFour) {
  const std::size_t terms = 2500;
  const Sample a(1, terms, 8), b(terms, 1, 9);
  float expected = 0.25f;
  for (std::size_t first = 0; first < terms; first += 1024) {
    float sum = 0;
    for (std::size_t l = first; l < std::min(terms, first + 1024); ++l) sum = std::fma(a.at(0, l), b.at(l, 0), sum);
    expected = std::fma(1.5f, sum, expected);
  }
  float c = 0.25f;
  add_product(1.5f, a.view(), PackedMatrix(b.view()), {&c, 1, 1, 1});
  EXPECT_EQ(std::bit_cast<std::uint32_t>(c), std::bit_cast<std::uint32_t>(expected));
}

TEST_P(Products, WhatIsNotFiniteStaysInItsOwnRow) {
  Sample a(9, 20, 10), c(9, 17, 11);
  const Sample b(20, 17, 12);
  a.at(4, 3) = std::numeric_limits<float>::infinity();
  a.at(6, 19) = std::numeric_limits<float>::quiet_NaN();
  add_product(1, a.view(), PackedMatrix(b.view()), c.view());
  for (std::size_t i = 0; i < 9; ++i)
    for (std::size_t j = 0; j < 17; ++j) EXPECT_EQ(std::isfinite(c.at(i, j)), i != 4 && i != 6) << i << ", " << j;
}

TEST_P(Products, RefuseShapesThatDoNotFit) {
  const Sample a(2, 3, 1), b(3, 4, 2);
  const PackedMatrix packed(b.view());
  Sample c(2, 4, 3), wrong(4, 2, 3);
  const std::vector<float> row(3);
  EXPECT_THROW(add_product(1, a.view().transpose(), packed, c.view()), std::logic_error);
  EXPECT_THROW(add_product(1, a.view(), packed, wrong.view()), std::logic_error);
  EXPECT_THROW(set_product(1, a.view(), packed, row, c.view()), std::logic_error);
  EXPECT_THROW(set_product(1, a.view(), packed, {}, wrong.view().transpose()), std::logic_error);
  add_product(1, a.view(), packed, wrong.view().transpose());
}

INSTANTIATE_TEST_SUITE_P(Targets, Products, all_targets(), target_name);

}  // namespace
}  // namespace thinwire::kernels
