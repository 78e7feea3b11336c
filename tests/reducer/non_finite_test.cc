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

TEST(NonFinite, WithoutFeedbackTheBucketIsVoidToo) {
  for (const char* compressor : {"none", "bf16", "qsgd:reduce=gather", "qsgd:reduce=sum", "casq:bits=2,feedback=off", "sparcml"}) {
    SCOPED_TRACE(compressor);
    Workers workers(Layout::flat(100), 2, {.compressor = compressor});
    Gradients gradients = make_gradients("normal", 2, 100);
    gradients[1][7] = std::nanf("");
    workers.step(gradients);
    for (const auto& mean : gradients)
      for (const float value : mean) EXPECT_TRUE(std::isnan(value));
    EXPECT_EQ(workers.reducer(0).state()[0].steps, 0u);
    EXPECT_EQ(workers.reducer(0).counters().failed_steps, 1u);
  }
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

// Finite values whose sum overflows, in the message after one that could have been committed.
TEST(NonFinite, AnOverflowInALaterMessageLeavesEarlierOnesAsTheyWere) {
  const Layout layout({{"big", {300, 200}}, {"last.bias", {9}}});
  Workers workers(layout, 2, {.compressor = "casq:bits=2", .rules = {{"*.bias", "none"}}});
  Gradients gradients = make_gradients("normal", 2, layout.elements());
  for (auto& gradient : gradients) gradient.back() = 3e38f;
  workers.step(gradients);
  for (const float value : gradients[0]) ASSERT_FALSE(std::isfinite(value));
  for (int rank = 0; rank < 2; ++rank)
    for (const float value : workers.residual(rank)) ASSERT_EQ(value, 0);
}

// Of float16 gradients and what is left of earlier ones: together beyond 65504.
TEST(NonFinite, AMeanThatCannotBeStoredIsFoundBeforeAnythingIsCommitted) {
  constexpr std::uint16_t k32768 = 0x7800, kExponent = 0x7c00;
  for (const char* compressor : {"bf16:feedback=on", "casq:bits=2", "casq:bits=2,reduce=scatter", "qsgd:feedback=on,reduce=gather",
                                 "qsgd:feedback=on,reduce=sum", "s2:mode=exact/casq:bits=2"}) {
    SCOPED_TRACE(compressor);
    std::vector<std::unique_ptr<Reducer>> reducers;
    for (int rank = 0; rank < 2; ++rank)
      reducers.push_back(std::make_unique<Reducer>(Layout({{"a", {20, 5}}}), ReducerOptions{.compressor = compressor, .rank = rank, .world_size = 2}));
    std::vector<std::vector<std::uint16_t>> gradients;
    const auto step = [&] {
      gradients.assign(2, std::vector<std::uint16_t>(100, k32768));
      in_parallel(2, [&](int rank, Communicator& communicator) {
        const auto index = static_cast<std::size_t>(rank);
        const ParameterGradient gradient{0, ElementType::kFloat16, std::as_writable_bytes(std::span(gradients[index]))};
        Reduction reduction = reducers[index]->reduce({&gradient, 1});
        run(reduction, communicator);
      });
    };
    step();
    for (const std::uint16_t half : gradients[0]) ASSERT_NE(half & kExponent, kExponent);
    std::vector<ParameterState> large = reducers[0]->state();
    large[0].residual.assign(100, 600000.0f);
    for (auto& reducer : reducers) reducer->load_state(large);
    step();
    for (const auto& gradient : gradients)
      for (const std::uint16_t half : gradient) ASSERT_GT(half & 0x7fff, kExponent) << "no NaN";
    for (auto& reducer : reducers) EXPECT_EQ(reducer->state()[0].residual, large[0].residual);
  }
}

// .89 of a step's energy used to be lost.
TEST(Step, AFailedStepLosesNothingThatItsFiniteBucketsHaveSent) {
  const Layout layout({{"a", {40, 40}}, {"b", {40, 40}}});
  for (const bool keep : {false, true}) {
    SCOPED_TRACE(keep);
    Workers workers(layout, 2, {.compressor = "casq:bits=1", .keep_old_residuals = keep});
    Gradients gradients = make_gradients("normal", 2, layout.elements());
    workers.step(gradients, {0, 1});
    const std::vector<float> before[] = {workers.residual(0), workers.residual(1)};
    gradients = make_gradients("normal", 2, layout.elements(), 2);
    gradients[1].back() = std::nanf("");
    const Gradients given = gradients;
    for (int rank = 0; rank < 2; ++rank) workers.reducer(rank).begin_step();
    workers.step(gradients, {0, 1});
    for (int rank = 0; rank < 2; ++rank) EXPECT_FALSE(workers.reducer(rank).end_step());
    double lost = 0, energy = 0;
    for (std::size_t i = 0; i < 1600; ++i) {
      const double sent = keep ? 0 : static_cast<double>(given[0][i]) + static_cast<double>(given[1][i]);
      const double was = static_cast<double>(before[0][i]) + static_cast<double>(before[1][i]);
      const double is = static_cast<double>(workers.residual(0)[i]) + static_cast<double>(workers.residual(1)[i]);
      lost += (sent + was - is) * (sent + was - is);
      energy += static_cast<double>(given[0][i]) * static_cast<double>(given[0][i]);
      if (i > 40) i += 39;
    }
    EXPECT_LT(lost, 1e-9 * energy);
    EXPECT_EQ(std::isnan(gradients[0][0]), !keep) << "an optimizer that does not look would use a mean that went back";
    if (keep) {
      EXPECT_EQ(workers.residual(0), before[0]);
    }
  }
}

TEST(Step, BeginsAndEndsInTurnsAndTakesEveryParameterOnce) {
  Reducer reducer(Layout::flat(10), {.compressor = "none"});
  std::vector<float> gradient(10, 1.0f);
  EXPECT_THROW(reducer.end_step(), ArgumentError);
  reducer.begin_step();
  EXPECT_THROW(reducer.begin_step(), ArgumentError);
  EXPECT_THROW(reducer.state(), StateError);
  {
    Reduction reduction = reducer.reduce(parameters_of(reducer.layout(), gradient));
    EXPECT_THROW(reducer.end_step(), ArgumentError);
    while (reduction.next()) {
    }
  }
  EXPECT_THROW(reducer.reduce(parameters_of(reducer.layout(), gradient)), ArgumentError);
  EXPECT_TRUE(reducer.end_step());
  EXPECT_EQ(reducer.state()[0].steps, 1u);
  reducer.begin_step();
  EXPECT_TRUE(reducer.end_step()) << "a step of nothing";
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
