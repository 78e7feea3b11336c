// Numbers of combinations: each has one of its own, from 1 to how many there are, and comes back from it.
#include "compressors/sparsifiers/combinations.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace thinwire {
namespace {

using Combination = std::vector<std::uint16_t>;
using Number = Combinations::Number;

Combination found(const Combinations& combinations, std::size_t taken, const Number& number) {
  Combination combination(taken);
  EXPECT_TRUE(combinations.find(number, combination));
  return combination;
}

// In lexicographic order of the largest first, which is that of numbers.
TEST(Combinations, AllOfFewAreNumberedInOrder) {
  for (std::size_t all = 1; all <= 12; ++all)
    for (std::size_t taken = 1; taken <= all; ++taken) {
      const Combinations combinations(taken, all);
      std::uint64_t count = 0;
      for (unsigned set = 0; set < 1U << all; ++set) {  // ascending: the largest element decides first
        Combination combination;
        for (std::uint16_t i = 0; i < all; ++i)
          if ((set >> i & 1U) != 0) combination.push_back(i);
        if (combination.size() != taken) continue;
        ASSERT_EQ(combinations.number_of(combination), Number{++count});
        ASSERT_EQ(found(combinations, taken, {count}), combination);
      }
      Combination none(taken);
      EXPECT_FALSE(combinations.find({0}, none));
      EXPECT_FALSE(combinations.find({count + 1}, none));
      EXPECT_FALSE(combinations.find({1, 0, 0, 1}, none));
      EXPECT_EQ(combinations.bits(), std::bit_width(count));
    }
}

TEST(Combinations, OfManyComeBackInTheBitsThatTheirNumberTakes) {
  std::mt19937 random(1);
  for (const std::size_t all : {64U, 65U, 191U, 319U})
    for (const std::size_t taken : {1U, 2U, 31U, 63U, 64U}) {
      const Combinations combinations(taken, all);
      const auto log_of_choices = [](double n, double k) { return (std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)) / std::log(2); };
      EXPECT_EQ(combinations.bits(), std::floor(log_of_choices(static_cast<double>(all), static_cast<double>(taken)) + 1e-9) + 1);
      Combination numbers(all), last(taken);
      std::iota(numbers.begin(), numbers.end(), std::uint16_t{0});
      std::iota(last.begin(), last.end(), static_cast<std::uint16_t>(all - taken));
      std::vector<Combination> tried = {Combination(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(taken)), last};
      for (int trial = 0; trial < 100; ++trial) {
        Combination some;
        std::sample(numbers.begin(), numbers.end(), std::back_inserter(some), static_cast<std::ptrdiff_t>(taken), random);
        tried.push_back(some);
      }
      for (const Combination& combination : tried) {
        const Number number = combinations.number_of(combination);
        ASSERT_EQ(found(combinations, taken, number), combination);
        for (std::size_t bit = combinations.bits(); bit < 64 * number.size(); ++bit) ASSERT_EQ(number[bit / 64] >> bit % 64 & 1U, 0U) << bit;
      }
      EXPECT_EQ(combinations.number_of(tried[0]), Number{1});
      Number beyond = combinations.number_of(last);  // the last one
      ++beyond[0];
      Combination none(taken);
      if (beyond[0] != 0) { EXPECT_FALSE(combinations.find(beyond, none)); }
    }
}

}  // namespace
}  // namespace thinwire
