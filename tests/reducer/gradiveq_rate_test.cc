// GradiVeQ's transform coding (rate=), in whole exchanges.
#include <cmath>
#include <numbers>
#include <random>

#include <gtest/gtest.h>

#include "compressors/gradiveq/bit_allocation.h"
#include "reducer/gradiveq_samples.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

constexpr int kWorldSizes[] = {1, 2, 3, 5, 16};

std::uint64_t sent(Workers& workers) { return workers.reducer(0).counters().payload_bytes; }

class GradiveqRate : public ::testing::TestWithParam<Cut> {};

// A group of slices has 512 entries at least, and as many whole words as the rate buys, of which one is its norm. Where fields
// of many bits leave room in every word, but not for one of them, a word or two are not needed.
TEST_P(GradiveqRate, BitsFollowTheFormula) {
  const Cut& cut = GetParam();
  const auto slices = slices_by_definition(cut.shape, cut.axis, cut.entries);
  for (const double rate : {1.0, 3.3})
    for (const int count : kWorldSizes) {
      if (count > 1 && cut.entries == 900) continue;  // the same, but slower
      Structured gradients(slices, 20, 0.5f);
      const std::size_t elements = gradients.draw(1)[0].size();
      const std::size_t group = (512 * slices.size() + elements - 1) / elements;
      const double words = std::floor(rate * static_cast<double>(elements * group) / static_cast<double>(slices.size()) / 32);
      const double bytes = 4 * words * static_cast<double>((slices.size() + group - 1) / group);
      Workers workers(layout_of(cut), count,
                      {.compressor = "gradiveq:learn=2,lag=0,use=50,smallest=0,axis=" + cut.axis + ",slice=" + std::to_string(cut.slice) +
                                     ",rate=" + std::to_string(rate)});
      for (int step = 0; step < 4; ++step) {
        Gradients means = gradients.draw(count);
        const std::uint64_t before = sent(workers);
        workers.step(means);
        expect_alike(means);
        if (step < 2) { EXPECT_EQ(sent(workers) - before, 4 * elements); }
        if (step < 2) continue;
        const auto measured = static_cast<double>(sent(workers) - before);
        EXPECT_LE(measured, bytes) << rate << ", " << count << " workers";
        EXPECT_GE(measured, bytes * (words - 2) / words) << rate << ", " << count << " workers";
        EXPECT_EQ(measured / bytes * words, std::round(measured / bytes * words)) << "whole words";
        // The last group of a parameter may be short of slices.
        EXPECT_LE(8 * bytes, rate * static_cast<double>(elements) * (1 + static_cast<double>(group) / static_cast<double>(slices.size())));
      }
    }
}

// With many bits next to nothing is rounded away (where slices are unlike, weak components are clipped), and what is left is
// linear.
TEST_P(GradiveqRate, SumsDecodeToWhatTheMeanAloneDecodesTo) {
  const Cut& cut = GetParam();
  const auto slices = slices_by_definition(cut.shape, cut.axis, cut.entries);
  const std::string spec = "gradiveq:learn=6,lag=0,use=50,smallest=0,rate=16,axis=" + cut.axis + ",slice=" + std::to_string(cut.slice);
  for (const int count : kWorldSizes) {
    if (count != 3 && cut.entries == 900) continue;  // slow
    Workers workers(layout_of(cut), count, {.compressor = spec}), alone(layout_of(cut), 1, {.compressor = spec});
    Structured gradients(slices, 3, 0.02f);
    for (int step = 0; step < 8; ++step) {
      Gradients means = gradients.draw(count);
      Gradients mean{mean_of(means)};
      const std::vector<float> exact = mean[0];
      workers.step(means);
      alone.step(mean);
      expect_alike(means);
      EXPECT_LT(relative_error(means[0], mean[0]), 1e-3) << count << " workers, step " << step;
      EXPECT_LT(relative_error(means[0], exact), 1e-3) << count << " workers, step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryAxis, GradiveqRate, ::testing::ValuesIn(cuts()), name_of_cut);

// Slices of 72 entries, normal, with variances 100 / i^2 of the mean along the rows of a cosine transform.
constexpr std::size_t kEntries = 72, kFilters = 256;
const Layout kNormal({{"conv.weight", {kFilters, 8, 3, 3}}});

double variance(std::size_t i) { return 100.0 / static_cast<double>((i + 1) * (i + 1)); }

Gradients normal_gradients(int workers, std::mt19937& random) {
  static const std::vector<float> rows = [] {
    std::vector<float> all(kEntries * kEntries);
    for (std::size_t i = 0; i < kEntries; ++i)
      for (std::size_t k = 0; k < kEntries; ++k)
        all[i * kEntries + k] = static_cast<float>(std::sqrt((i == 0 ? 1.0 : 2.0) / kEntries) *
                                                   std::cos(std::numbers::pi * static_cast<double>(i) * (static_cast<double>(k) + 0.5) / kEntries));
    return all;
  }();
  std::normal_distribution<float> normal;
  Gradients gradients(static_cast<std::size_t>(workers), std::vector<float>(kFilters * kEntries));
  for (auto& gradient : gradients)
    for (std::size_t s = 0; s < kFilters; ++s)
      for (std::size_t i = 0; i < kEntries; ++i) {
        const float y = normal(random) * static_cast<float>(std::sqrt(variance(i) * workers));
        for (std::size_t k = 0; k < kEntries; ++k) gradient[s * kEntries + k] += y * rows[i * kEntries + k];
      }
  return gradients;
}

TEST(GradiveqRateError, IsWhatWaterFillingForesees) {
  std::vector<float> variances;
  for (std::size_t i = 0; i < kEntries; ++i) variances.push_back(static_cast<float>(variance(i)));
  for (const int count : kWorldSizes)
    for (const double rate : {1.0, 2.0, 4.0}) {
      // 8 slices of 72 entries share their words, one of which is the norm.
      const auto words = static_cast<std::size_t>(rate * 8 * kEntries / 32) - 1;
      const double foreseen = allocate_bits(variances, 8, words, count).error * kFilters;
      Workers workers(kNormal, count, {.compressor = "gradiveq:learn=8,lag=0,use=50,smallest=0,rate=" + std::to_string(rate)});
      std::mt19937 random(11);
      double error = 0;
      constexpr int kSteps = 3;
      for (int step = 0; step < 8 + kSteps; ++step) {
        Gradients means = normal_gradients(count, random);
        const std::vector<float> exact = mean_of(means);
        workers.step(means);
        if (step < 8) continue;
        for (std::size_t e = 0; e < exact.size(); ++e) {
          const double difference = static_cast<double>(means[0][e]) - static_cast<double>(exact[e]);
          error += difference * difference / kSteps;
        }
      }
      // Eigenvalues are of 2,048 slices; a norm is the largest of all workers', which is more than the root of the mean.
      EXPECT_GT(error, 0.93 * foreseen) << rate << ", " << count << " workers";
      EXPECT_LT(error, 1.12 * foreseen) << rate << ", " << count << " workers";
    }
}

// What is rounded away or clipped goes out later: over many steps with one gradient its sum is right, but for what the
// components do not hold. Without feedback the same error is made in each step.
TEST(GradiveqRateFeedback, WhatIsRoundedAwayGoesOutLater) {
  double error[2];
  for (const bool feedback : {false, true}) {
    Workers workers(kNormal, 3,
                    {.compressor = std::string("gradiveq:learn=4,lag=0,use=100,smallest=0,rate=6,feedback=") + (feedback ? "on" : "off")});
    std::mt19937 random(5);
    constexpr int kSteps = 40;
    Gradients inputs;
    std::vector<float> sum(kFilters * kEntries);
    for (int step = 0; step < 4 + kSteps; ++step) {
      if (step <= 4) inputs = normal_gradients(3, random);
      Gradients means = inputs;
      workers.step(means);
      if (step < 4) continue;
      for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += means[0][e] / kSteps;
    }
    error[feedback] = relative_error(sum, mean_of(inputs));
  }
  EXPECT_LT(error[true], 0.4 * error[false]);
}

TEST(GradiveqRateSpec, WhatCannotBeIsRefused) {
  EXPECT_THROW(canonical_spec("gradiveq:rate=0.1"), ArgumentError);
  EXPECT_THROW(canonical_spec("gradiveq:rate=17"), ArgumentError);
  EXPECT_THROW(canonical_spec("gradiveq:rate=1/qsgd:bits=4"), ArgumentError);
  EXPECT_NO_THROW(canonical_spec("gradiveq:rate=0/qsgd:bits=4"));
  EXPECT_NO_THROW(canonical_spec("gradiveq:rate=0.125"));
}

// Where not even one component's field fits, values travel uncompressed.
TEST(GradiveqRateSpec, TooLowARateForShortSlicesCompressesNothing) {
  Workers workers(kNormal, 2, {.compressor = "gradiveq:learn=1,lag=0,use=50,smallest=0,axis=kernel,rate=0.125"});
  for (unsigned step = 0; step < 2; ++step) {
    Gradients means = make_gradients("normal", 2, kNormal.elements(), step);
    const std::vector<float> exact = mean_of(means);
    workers.step(means);
    EXPECT_LT(relative_error(means[0], exact), 1e-12);
  }
}

}  // namespace
}  // namespace thinwire::testing
