#include "compressors/casq/rate_control.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

namespace thinwire::casq {
namespace {

ChunkEncoder& encoder() {
  static const auto made = std::make_unique<ChunkEncoder>();
  return *made;
}

// Blocks' scales wander, and all of them change with `scale`.
std::vector<float> gradient(std::size_t n, double spread, double scale, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> values(n);
  double wandering = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i % 128 == 0) wandering = 0.9 * wandering + spread * normal(random);
    values[i] = static_cast<float>(scale * std::exp(wandering) * normal(random));
  }
  return values;
}

double rate_of(std::span<const float> values, float step) {
  std::vector<std::byte> code(most_code_bytes(kMostChunkElements));
  double bits = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += kMostChunkElements)
    bits += 8.0 * static_cast<double>(encoder().encode(values.subspan(begin, std::min(kMostChunkElements, values.size() - begin)), step, code).bytes);
  return bits / static_cast<double>(values.size());
}

TEST(RateControl, AStepMeetsTheRateOfItsSample) {
  for (const double spread : {0.0, 0.5, 1.5})
    for (const double scale : {1e-30, 1e-3, 1.0, 1e20})
      for (const double rate : {0.05, 0.25, 1.0, 4.0, 8.0}) {
        const std::vector<float> values = gradient(65536, spread, scale, 1);
        for (const float guess : {0.0F, static_cast<float>(scale), kernels::kLeastStep}) {
          const float step = choose_step(values, rate, encoder(), guess).step;
          EXPECT_NEAR(rate_of(values, step) / rate, 1, 0.03) << "spread " << spread << ", scale " << scale << ", rate " << rate;
        }
      }
}

TEST(RateControl, ASampleTellsTheRateOfTheWhole) {
  for (const double rate : {0.1, 1.0}) {
    const std::vector<float> values = gradient(1 << 20, 0.2, 1, 2);
    constexpr std::size_t kRuns = 4;
    std::vector<float> sample;
    for (std::size_t begin = 0; begin < values.size(); begin += kMostChunkElements) {
      const auto chunk = std::span(values).subspan(begin, kMostChunkElements);
      sample.resize(sample.size() + sample_size(chunk.size(), kRuns));
      copy_sample(chunk, kRuns, std::span(sample).last(sample_size(chunk.size(), kRuns)));
    }
    EXPECT_EQ(sample.size(), values.size() / 16);
    EXPECT_NEAR(rate_of(values, choose_step(sample, rate, encoder()).step) / rate, 1, 0.1);
  }
}

TEST(RateControl, WhatTellsNothingLeavesTheStep) {
  EXPECT_EQ(choose_step({}, 1, encoder()).step, 0);
  EXPECT_EQ(choose_step(std::vector<float>(1000), 1, encoder()).step, 0);
}

TEST(RateControl, SamplesAreRunsOfTheValues) {
  std::vector<float> values(5000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  for (const std::size_t n : {1u, 511u, 512u, 513u, 1024u, 5000u})
    for (const std::size_t runs : {1u, 2u, 5u, 16u}) {
      std::vector<float> sample(sample_size(n, runs));
      EXPECT_EQ(sample.size(), std::min(n, runs * kSampleRun));
      copy_sample(std::span(values).first(n), runs, sample);
      for (std::size_t i = 0; i < sample.size(); ++i)
        if (i % kSampleRun != 0) { ASSERT_EQ(sample[i], sample[i - 1] + 1) << n << ", " << runs; }
    }
}

}  // namespace
}  // namespace thinwire::casq
