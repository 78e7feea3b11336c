// S2's modes and the sparse baselines: exactness on every support, bits by their formulas, and what feedback needs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "compressors/s2/peeled_rows.h"
#include "compressors/s2/s2.h"
#include "kernels/statistics.h"
#include "reducer/workers.h"
#include "sanitized.h"

namespace thinwire::testing {
namespace {

// How workers' rows lie to each other.
enum class Support { kIndependent, kSame, kDisjoint, kOneWorker, kNone };

struct Rows {
  std::size_t rows, row;
  double density;
  Support support = Support::kIndependent;
};

// Rows of small integers, whose sums no order of additions changes.
Gradients sparse_gradients(const Rows& of, int workers, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> value(-64, 64);
  std::bernoulli_distribution present(of.density);
  Gradients gradients(static_cast<std::size_t>(workers), std::vector<float>(of.rows * of.row));
  for (std::size_t r = 0; r < of.rows; ++r) {
    const bool all = present(random);
    for (std::size_t w = 0; w < gradients.size(); ++w) {
      bool has = all;
      if (of.support == Support::kIndependent) has = present(random);
      if (of.support == Support::kDisjoint) has = all && r % gradients.size() == w;
      if (of.support == Support::kOneWorker) has = all && w + 1 == gradients.size();
      if (of.support == Support::kNone) has = false;
      if (has)
        for (std::size_t i = 0; i < of.row; ++i) gradients[w][r * of.row + i] = static_cast<float>(value(random));
    }
  }
  return gradients;
}

std::vector<float> exact_mean(const Gradients& gradients) {
  std::vector<float> mean(gradients[0].size());
  for (std::size_t i = 0; i < mean.size(); ++i) {
    float sum = 0;
    for (const auto& gradient : gradients) sum += gradient[i];
    mean[i] = sum * (1.0f / static_cast<float>(gradients.size()));
  }
  return mean;
}

ReducerOptions with(const std::string& spec) { return {.compressor = spec}; }

class Lossless : public ::testing::TestWithParam<std::string> {};

TEST_P(Lossless, IsTheExactMean) {
  const std::vector<Rows> shapes = {
      {1000, 16, 0.0001}, {1000, 16, 0.001}, {1000, 16, 0.01}, {500, 7, 0.05}, {333, 5, 0.2}, {257, 3, 0.6}, {64, 1, 0.6},
      {4097, 1, 0.01},    {1, 1, 1},         {1, 1000, 1},     {33, 300, 0.1}, {2000, 2, 0.3}};
  for (const int workers : kSanitized ? std::vector{1, 3, 16} : std::vector{1, 2, 3, 4, 5, 8, 16})
    for (const Support support : {Support::kIndependent, Support::kSame, Support::kDisjoint, Support::kOneWorker, Support::kNone})
      for (const Rows& shape : shapes) {
        if (workers > 5 && shape.rows * shape.row > 5000) continue;
        Rows rows = shape;
        rows.support = support;
        SCOPED_TRACE(std::to_string(workers) + " workers, " + std::to_string(rows.rows) + " x " + std::to_string(rows.row) +
                     ", density " + std::to_string(rows.density) + ", support " + std::to_string(static_cast<int>(support)));
        const Layout layout({{"embedding", {static_cast<std::int64_t>(rows.rows), static_cast<std::int64_t>(rows.row)}}});
        Workers group(layout, workers, with(GetParam()));
        for (unsigned step = 0; step < 3; ++step) {
          Gradients gradients = sparse_gradients(rows, workers, step + 1);
          const std::vector<float> expected = exact_mean(gradients);
          group.step(gradients);
          for (const auto& mean : gradients) ASSERT_EQ(mean, expected) << "step " << step;
        }
      }
}

TEST_P(Lossless, ManyParametersOfOddShapesInOneMessage) {
  const Layout layout({{"a", {37, 5}}, {"empty", {0, 4}}, {"b", {100}}, {"no_rows", {4, 0}}, {"c", {2, 3, 7}}, {"scalar", {}}});
  Workers group(layout, 3, with(GetParam()));
  for (unsigned step = 0; step < 4; ++step) {
    std::mt19937 random(step);
    Gradients gradients(3, std::vector<float>(layout.elements()));
    for (auto& gradient : gradients) {
      for (float& value : gradient) value = random() % 10 == 0 ? static_cast<float>(random() % 50) : random() % 2 == 0 ? 0.0f : -0.0f;
    }
    const std::vector<float> expected = exact_mean(gradients);
    group.step(gradients, step % 2 == 0 ? std::vector<std::size_t>{0} : std::vector<std::size_t>{0, 2, 4});
    for (const auto& mean : gradients) ASSERT_EQ(mean, expected) << "step " << step;
    for (std::size_t w = 1; w < 3; ++w)
      ASSERT_EQ(std::memcmp(gradients[0].data(), gradients[w].data(), gradients[0].size() * sizeof(float)), 0);
  }
}

TEST_P(Lossless, NaNReachesEverybodyAndNothingElseIsLost) {
  const Layout layout({{"embedding", {500, 8}}, {"other", {100}}});
  ReducerOptions options = with(GetParam());
  options.rules = {{"other", "casq:bits=2"}};  // keeps a residual, so everybody must know
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Workers group(layout, 3, options);
    for (unsigned step = 0; step < 3; ++step) {
      Gradients gradients = sparse_gradients({1, layout.elements(), 1}, 3, step);
      for (auto& gradient : gradients) {
        for (std::size_t i = 0; i < 4000; ++i)
          if (i / 8 % 20 != 0) gradient[i] = 0;
      }
      if (step == 1) gradients[1][8 * 40] = bad;
      const auto residual = group.residual(0);
      group.step(gradients);
      for (const auto& mean : gradients) EXPECT_EQ(std::isfinite(mean[8 * 40]), step != 1);
      if (step == 1) {
        EXPECT_EQ(group.residual(0), residual);
      }
    }
    EXPECT_EQ(group.reducer(2).counters().non_finite, 1u);
  }
}

TEST_P(Lossless, ThreadsDoNotChangeBits) {
  const Layout layout({{"embedding", {5000, 64}}});
  Gradients expected;
  for (const int threads : {1, 3}) {
    ReducerOptions options = with(GetParam());
    options.threads = threads;
    Workers group(layout, 2, options);
    Gradients gradients = sparse_gradients({5000, 64, 0.3}, 2, 9);
    for (auto& gradient : gradients)
      for (float& value : gradient) value *= 0.1f;
    group.step(gradients);
    if (expected.empty()) expected = gradients;
    EXPECT_EQ(gradients, expected);
  }
}

TEST_P(Lossless, LossScaleAndHalfGradientsComeBack) {
  const Layout layout({{"embedding", {50, 4}}});
  Workers group(layout, 2, with(GetParam()));
  Gradients gradients = sparse_gradients({50, 4, 0.2}, 2, 5);
  const auto expected = exact_mean(gradients);
  group.step(gradients, {0}, 1024);
  EXPECT_EQ(gradients[1], expected);
}

std::string name_of_spec(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Specs, Lossless,
                         ::testing::Values("s2:mode=exact", "s2:mode=gather", "s2:mode=split", "s2:mode=auto",
                                           "s2:mode=peel", "s2:mode=exact,block=3",
                                           "s2:mode=split,block=5", "s2:mode=peel,block=7", "s2:mode=exact/none", "coordinates",
                                           "coordinates:block=4", "sparcml", "omnireduce", "omnireduce:block=3"),
                         name_of_spec);

}  // namespace
}  // namespace thinwire::testing
