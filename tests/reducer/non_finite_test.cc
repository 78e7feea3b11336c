// NaN and infinities: the bucket's mean is non-finite on every worker, and nothing is remembered of the step.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

void expect_equal_states(const std::vector<ParameterState>& a, const std::vector<ParameterState>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].residual, b[i].residual);
    EXPECT_EQ(a[i].steps, b[i].steps);
    EXPECT_EQ(a[i].memory, b[i].memory);
  }
}

// Threads meet alike wherever the culprit is, and the thread sanitizer is slow.
#ifdef __SANITIZE_THREAD__
constexpr std::size_t kCulprits = 1;
#else
constexpr std::size_t kCulprits = 3;
#endif

class NonFinite : public ::testing::TestWithParam<std::string> {};

TEST_P(NonFinite, AnywhereInABucketVoidsItEverywhere) {
  const Layout layout({{"big", {300, 200}}, {"exempt.bias", {9}}, {"other", {50, 40}}});
  ReducerOptions options;
  options.compressor = GetParam();
  options.rules = {{"*.bias", "none"}, {"other", "bf16:feedback=on"}};
  const std::size_t last = layout.elements() - 1;
  for (const std::size_t position : {std::size_t{0}, std::size_t{59999}, std::size_t{60003}, last})
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()})
      for (std::size_t culprit = 0; culprit < kCulprits; ++culprit) {
        SCOPED_TRACE(std::to_string(position) + " of worker " + std::to_string(culprit));
        Workers workers(layout, 3, options), untouched(layout, 3, options);
        Gradients gradients = make_gradients("normal", 3, layout.elements(), 1), same = gradients;
        workers.step(gradients);
        untouched.step(same);

        gradients = make_gradients("normal", 3, layout.elements(), 2);
        gradients[culprit][position] = bad;
        workers.step(gradients);
        for (int rank = 0; rank < 3; ++rank) {
          for (const float value : gradients[static_cast<std::size_t>(rank)]) ASSERT_FALSE(std::isfinite(value));
          expect_equal_states(workers.reducer(rank).state(), untouched.reducer(rank).state());
          EXPECT_EQ(workers.reducer(rank).counters().non_finite, 1u);
        }

        gradients = same = make_gradients("normal", 3, layout.elements(), 3);
        workers.step(gradients);
        untouched.step(same);
        EXPECT_EQ(gradients, same);
      }
}

INSTANTIATE_TEST_SUITE_P(WithFeedback, NonFinite, ::testing::Values("casq:bits=2", "bf16:feedback=on", "fp16:feedback=on"));

TEST(NonFinite, WithoutMemoryItStaysWhereItIs) {
  Workers workers(Layout::flat(100), 2, {.compressor = "none"});
  Gradients gradients = make_gradients("normal", 2, 100);
  gradients[1][7] = std::nanf("");
  workers.step(gradients);
  for (const auto& mean : gradients)
    for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(std::isnan(mean[i]), i == 7);
}

TEST(Unused, WhatNoWorkerUsedKeepsItsResidual) {
  const Layout layout({{"a", {40, 40}}, {"b", {40, 40}}});
  Workers workers(layout, 2, {.compressor = "casq:bits=1"});
  Gradients gradients = make_gradients("normal", 2, layout.elements());
  workers.step(gradients);
  const std::vector<float> before = workers.residual(1);
  gradients = make_gradients("normal", 2, layout.elements(), 2);
  for (auto& gradient : gradients) std::fill_n(gradient.begin(), 1600, 0.0f);
  workers.step(gradients);
  const std::vector<float> after = workers.residual(1);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 1600, after.begin()));
  EXPECT_FALSE(std::equal(before.begin() + 1600, before.end(), after.begin() + 1600));
  for (std::size_t i = 0; i < 1600; ++i) ASSERT_EQ(gradients[0][i], 0);
}

class UnusedHalf : public ::testing::TestWithParam<std::string> {};
TEST_P(UnusedHalf, KeepsItsResidualToo) {
  const Layout layout({{"a", {40, 40}}, {"b", {40, 40}}});
  Workers workers(layout, 3, {.compressor = GetParam()});
  Gradients gradients = make_gradients("normal", 3, layout.elements());
  workers.step(gradients);
  const std::vector<float> before = workers.residual(1);
  gradients = make_gradients("normal", 3, layout.elements(), 2);
  for (auto& gradient : gradients) std::fill_n(gradient.begin(), 1600, 0.0f);
  workers.step(gradients);
  const std::vector<float> after = workers.residual(1);
  EXPECT_NE(before[0], 0);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 1600, after.begin()));
  EXPECT_FALSE(std::equal(before.begin() + 1600, before.end(), after.begin() + 1600));
  for (std::size_t i = 0; i < 1600; ++i) ASSERT_EQ(gradients[0][i], 0);
}
INSTANTIATE_TEST_SUITE_P(Every, UnusedHalf, ::testing::Values("bf16:feedback=on", "fp16:feedback=on"));

// Finite values whose sum overflows, in the message after one that is committed.
TEST(NonFinite, AnOverflowAfterACommitLosesNothing) {
  const Layout layout({{"big", {300, 200}}, {"last.bias", {9}}});
  Workers workers(layout, 2, {.compressor = "casq:bits=2", .rules = {{"*.bias", "none"}}});
  Gradients gradients = make_gradients("normal", 2, layout.elements());
  for (auto& gradient : gradients) gradient.back() = 3e38f;
  const Gradients given = gradients;
  workers.step(gradients);
  for (const float value : gradients[0]) ASSERT_FALSE(std::isfinite(value));
  const std::vector<float> first = workers.residual(0), second = workers.residual(1);
  for (std::size_t i = 0; i < 60000; ++i) ASSERT_NEAR(given[0][i] + given[1][i], first[i] + second[i], 1e-5) << i;
}

TEST(Unused, OneWorkerIsEnoughToUseIt) {
  Workers workers(Layout::flat(1600), 2, {.compressor = "casq:bits=1"});
  Gradients gradients = make_gradients("normal", 2, 1600);
  workers.step(gradients);
  const std::vector<float> before = workers.residual(0);
  gradients = make_gradients("one_worker_zero", 2, 1600, 2);
  workers.step(gradients);
  EXPECT_NE(before, workers.residual(0));
}

}  // namespace
}  // namespace thinwire::testing
