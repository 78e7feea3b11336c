// Bits for components, and codes that add up, against slow references in double precision.
#include "compressors/gradiveq/transform_code.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "compressors/gradiveq/bit_allocation.h"

namespace thinwire {
namespace {

constexpr int kWorldSizes[] = {1, 2, 3, 5, 16};

TEST(BitAllocation, LevelsOfAllWorkersJustFitTheirField) {
  for (const int workers : kWorldSizes)
    for (int width = 1; width <= kWidestField; ++width) {
      const std::int64_t levels = levels_of(width, workers), values = std::int64_t{1} << width;
      EXPECT_LE(2 * workers * levels + 1, values) << width << " bits, " << workers << " workers";
      EXPECT_GT(2 * workers * (levels + 1) + 1, values) << width << " bits, " << workers << " workers";
    }
}

// The integral of (x - q(x))^2 times the normal density, by small parts.
double integrated_error(double step, std::int32_t levels) {
  constexpr double kPart = 1e-4;
  double error = 0;
  for (double x = kPart / 2; x < 9; x += kPart) {
    const double difference = x - step * std::min(std::floor(x / step + 0.5), static_cast<double>(levels));
    error += 2 * kPart * difference * difference * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
  }
  return error;
}

TEST(BitAllocation, StepsAreTheBestForANormalDistribution) {
  for (const std::int32_t levels : {1, 2, 3, 7, 15, 40, 64, 65, 127, 1000}) {
    const NormalQuantizer quantizer = normal_quantizer(levels);
    const double best = integrated_error(quantizer.step, levels);
    EXPECT_NEAR(quantizer.error, best, 0.03 * best) << levels;
    EXPECT_GT(1.001 * integrated_error(1.05 * quantizer.step, levels), best) << levels;
    EXPECT_GT(1.001 * integrated_error(0.95 * quantizer.step, levels), best) << levels;
  }
  EXPECT_NEAR(normal_quantizer(1).step, 1.224, 0.001);  // Max, 1960
  EXPECT_NEAR(normal_quantizer(1).error, 0.1902, 0.0002);
  EXPECT_EQ(normal_quantizer(0).error, 1);
}

TEST(FieldPlan, FieldsShareNoBitAndFillTheirWords) {
  for (const std::size_t group : {1u, 7u, 57u}) {
    const std::vector<int> widths{17, 11, 9, 9, 9, 8, 7, 7, 6, 6, 6, 5, 5, 4, 4, 4, 4, 3, 1};
    const FieldPlan plan(widths, group);
    std::vector<std::uint32_t> taken(plan.words());
    std::size_t bits = 0;
    for (std::size_t c = 0; c < widths.size(); ++c)
      for (std::size_t m = 0; m < group; ++m) {
        const FieldPlan::Place& place = plan.place(c, m);
        ASSERT_EQ(place.width, widths[c]);
        ASSERT_LE(place.shift + place.width, 32);
        ASSERT_LT(place.word, plan.words());
        const std::uint32_t mask = ((std::uint32_t{1} << place.width) - 1) << place.shift;
        ASSERT_EQ(taken[place.word] & mask, 0u);
        taken[place.word] |= mask;
        bits += static_cast<std::size_t>(place.width);
      }
    std::size_t seen = 0;
    for (std::size_t word = 0; word < plan.words(); ++word) seen += plan.places_in(word).size();
    EXPECT_EQ(seen, widths.size() * group);
    EXPECT_LE(plan.words(), bits / 32 + 1 + plan.words() / 10) << "waste";
  }
}

// The least error of all ways to give so many bits, whatever words they lie in: by dynamic programming.
double least_error(const std::vector<float>& variances, int bits, int world_size) {
  std::vector<double> errors;
  for (int width = 0; width <= kWidestField; ++width) errors.push_back(normal_quantizer(levels_of(width, world_size)).error);
  std::vector<double> best(static_cast<std::size_t>(bits) + 1, 0.0);
  for (const float variance : variances) {
    std::vector<double> next(best.size(), std::numeric_limits<double>::infinity());
    for (int width = 0; width <= kWidestField; ++width)
      for (int used = 0; used + width <= bits; ++used) {
        const double error = best[static_cast<std::size_t>(used)] +
                             static_cast<double>(variance) * errors[static_cast<std::size_t>(width)];
        next[static_cast<std::size_t>(used + width)] = std::min(next[static_cast<std::size_t>(used + width)], error);
      }
    best = next;
  }
  return *std::ranges::min_element(best);
}

TEST(BitAllocation, IsNearTheBestOfAllAllocations) {
  for (const int workers : {1, 4, 16})
    for (const std::size_t words : {2u, 6u, 18u}) {
      std::vector<float> variances;
      for (int i = 0; i < 100; ++i) variances.push_back(3.0f * std::pow(0.95f, static_cast<float>(i)));
      const BitAllocation allocation = allocate_bits(variances, 1, words, workers);
      const double best = least_error(variances, static_cast<int>(32 * words), workers);
      EXPECT_GE(allocation.error, 0.999 * best);
      EXPECT_LE(allocation.error, 1.3 * best) << words << " words, " << workers << " workers";
      EXPECT_LE(FieldPlan(allocation.widths, 1).words(), words);
      EXPECT_TRUE(std::ranges::is_sorted(allocation.widths, std::greater<>()));
    }
}

// The error of reverse water-filling with real numbers of bits: water level by bisection.
double water_filled(const std::vector<float>& variances, double bits) {
  double low = 0, high = static_cast<double>(*std::ranges::max_element(variances));
  const auto bits_at = [&](double level) {
    double sum = 0;
    for (const float variance : variances) sum += std::max(0.0, 0.5 * std::log2(static_cast<double>(variance) / level));
    return sum;
  };
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (bits_at(middle) > bits ? low : high) = middle;
  }
  double error = 0;
  for (const float variance : variances) error += std::min(high, static_cast<double>(variance));
  return error;
}

// A component's even steps lose a few times what the theory's ideal code of as many values would; the sum loses no more.
TEST(BitAllocation, FollowsReverseWaterFilling) {
  std::vector<float> variances;
  for (int i = 0; i < 576; ++i) variances.push_back(std::pow(static_cast<float>(i + 1), -1.5f));
  for (const int workers : {1, 4})
    for (const std::size_t words : {9u, 18u, 36u, 72u}) {
      const BitAllocation allocation = allocate_bits(variances, 1, words, workers);
      double bits = 0, worst = 0;
      for (const int width : allocation.widths) {
        const double values = 2.0 * levels_of(width, workers) + 1;
        bits += std::log2(values);
        worst = std::max(worst, normal_quantizer(levels_of(width, workers)).error * values * values);
      }
      const double ideal = water_filled(variances, bits);
      EXPECT_GT(allocation.error, ideal);
      EXPECT_LT(allocation.error, worst * ideal) << words << " words, " << workers << " workers";
    }
}

TEST(BitAllocation, NothingFitsOrNothingVaries) {
  const std::vector<float> some{1, 0.5f}, none{0, 0};
  EXPECT_TRUE(allocate_bits(some, 1, 0, 4).widths.empty());
  EXPECT_TRUE(allocate_bits(some, 57, 1, 4).widths.empty());
  EXPECT_TRUE(allocate_bits(none, 1, 9, 4).widths.empty());
  EXPECT_TRUE(allocate_bits(some, 1, 9, 1 << 22).widths.empty()) << "more workers than a field can count";
  EXPECT_EQ(allocate_bits(some, 1, 9, 4).widths.size(), 2u);
}

struct Coefficients {
  std::size_t rows, columns;
  std::vector<float> values;
  kernels::Matrix matrix() { return {values.data(), rows, columns, columns}; }
  kernels::ConstMatrix constant() const { return {values.data(), rows, columns, columns}; }
};

// Every worker's coefficients rounded, clipped and added in double precision.
TEST(TransformCode, SumsAreWhatTheWorkersRoundedTo) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const std::vector<float> deviations{3.0f, 1.0f, 0.5f, 0.01f, 1e-30f};
  for (const int workers : kWorldSizes)
    for (const std::size_t group : {1u, 4u, 57u, 512u})
      for (const std::size_t slices : {1u, 56u, 1500u}) {
        const TransformCode code({14, 10, 9, 8, 6}, {1e-3f, 0.05f, 0.1f, 0.2f, 0.8f}, group);
        std::vector<Coefficients> all;
        std::vector<float> norms(code.norms(slices), 0.0f);
        for (int w = 0; w < workers; ++w) {
          Coefficients one{5, slices, std::vector<float>(5 * slices)};
          for (std::size_t i = 0; i < one.values.size(); ++i) one.values[i] = deviations[i / slices] * normal(random);
          if (w == 0) one.values[slices / 2] = 1e6f;  // clipped by all that share its norm, or by nobody
          if (slices > 1) one.values[slices - 1] = 0;
          std::vector<float> own(norms.size());
          code.measure(one.constant(), deviations, workers, own);
          for (std::size_t n = 0; n < norms.size(); ++n) norms[n] = std::max(norms[n], own[n]);
          for (std::size_t n = 0; w == 0 && n < norms.size(); ++n) {
            double sum = 0, count = 0, least = 0;
            for (std::size_t c = 0; c < 5; ++c)
              for (std::size_t j = n * group; j < std::min((n + 1) * group, slices); ++j, ++count) {
                const double ratio = static_cast<double>(one.values[c * slices + j]) / static_cast<double>(deviations[c]);
                sum += ratio * ratio;
                const double range = (levels_of(code.widths()[c], workers) + 0.5) * static_cast<double>(code.steps()[c]);
                least = std::max(least, std::abs(ratio) / range / 2);
              }
            const double lowest = std::max(std::sqrt(sum / count), least), highest = std::max(lowest, 2 * least);
            ASSERT_GE(own[n], (1 - 1e-5) * lowest);
            ASSERT_LE(own[n], (1 + 1e-5) * highest);
            // What all lose by rounding and this worker by clipping.
            const auto loss = [&](double norm) {
              double lost = 0;
              for (std::size_t c = 0; c < 5; ++c)
                for (std::size_t j = n * group; j < std::min((n + 1) * group, slices); ++j) {
                  const double step = norm * static_cast<double>(code.steps()[c]) * static_cast<double>(deviations[c]);
                  const double size = std::abs(static_cast<double>(one.values[c * slices + j]));
                  lost += workers * step * step / 12 + std::pow(std::max(size - (levels_of(code.widths()[c], workers) + 0.5) * step, 0.0), 2);
                }
              return lost;
            };
            ASSERT_LE(loss(own[n]), (1 + 1e-4) * std::min(loss(lowest), loss(highest)));
          }
          all.push_back(one);
        }
        std::vector<std::int32_t> words(code.words(slices)), sum(words.size(), 0);
        std::vector<double> expected(5 * slices), tolerance(5 * slices);
        for (Coefficients& one : all) {
          const Coefficients exact = one;
          code.encode(one.matrix(), deviations, norms, workers, true, words);
          for (std::size_t i = 0; i < words.size(); ++i)
            sum[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum[i]) + static_cast<std::uint32_t>(words[i]));
          for (std::size_t i = 0; i < expected.size(); ++i) {
            const std::size_t c = i / slices;
            const double step = static_cast<double>(code.steps()[c]) * static_cast<double>(deviations[c]) *
                                static_cast<double>(norms[i % slices / group]);
            const double limit = levels_of(code.widths()[c], workers), steps = static_cast<double>(exact.values[i]) / step;
            const double level = std::clamp(std::nearbyint(steps), -limit, limit);
            expected[i] += level * step;
            tolerance[i] += 1e-6 * std::abs(level) * step;
            if (std::abs(std::abs(steps - std::floor(steps)) - 0.5) < 1e-3) tolerance[i] += step;  // a tie, but for rounding
            ASSERT_NEAR(one.values[i], level * step, tolerance[i]) << "its own";
          }
        }
        Coefficients decoded{5, slices, std::vector<float>(5 * slices)};
        code.decode(sum, deviations, norms, workers, decoded.matrix());
        for (std::size_t i = 0; i < expected.size(); ++i)
          ASSERT_NEAR(decoded.values[i], expected[i], tolerance[i]) << i << " of " << slices << ", group " << group << ", " << workers << " workers";
      }
}

TEST(TransformCode, WhatIsNotFiniteIsSeenInItsNormAndInWhatIsDecoded) {
  const TransformCode code({8, 8}, {0.1f, 0.1f}, 2);
  const std::vector<float> deviations{1, 1};
  Coefficients one{2, 6, {1, 2, std::numeric_limits<float>::infinity(), 4, 5, 6, 1, 2, 3, 4, 5, 6}};
  std::vector<float> norms(3);
  code.measure(one.constant(), deviations, 1, norms);
  EXPECT_TRUE(std::isfinite(norms[0]) && std::isnan(norms[1]) && std::isfinite(norms[2]));
  std::vector<std::int32_t> words(code.words(6));
  code.encode(one.matrix(), deviations, norms, 1, true, words);
  Coefficients decoded{2, 6, std::vector<float>(12)};
  code.decode(words, deviations, norms, 1, decoded.matrix());
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(std::isnan(decoded.values[i]), i % 6 == 2 || i % 6 == 3) << i;
}

}  // namespace
}  // namespace thinwire
