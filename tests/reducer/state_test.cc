#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

const Layout& layout() {
  static const Layout instance({{"a", {300, 150}}, {"b", {64}}, {"c", {70, 10}}});
  return instance;
}
const ReducerOptions kOptions{.compressor = "casq:bits=2,retrain=4", .rules = {{"b", "none"}}};

Gradients step(Workers& workers, unsigned number) {
  Gradients gradients = make_gradients("laplace", 3, layout().elements(), number);
  workers.step(gradients, {0, 1, 2});
  return gradients;
}

TEST(State, AResumedRunContinuesWithTheSameBits) {
  Workers original(layout(), 3, kOptions);
  for (unsigned number = 0; number < 9; ++number) {
    Workers resumed(layout(), 3, kOptions);
    for (int rank = 0; rank < 3; ++rank) resumed.reducer(rank).load_state(original.reducer(rank).state());
    Workers ahead(layout(), 3, kOptions);
    for (int rank = 0; rank < 3; ++rank) ahead.reducer(rank).load_state(original.reducer(rank).state());
    for (unsigned more = 0; more < 5; ++more) ASSERT_EQ(step(resumed, number + more), step(ahead, number + more));
    ASSERT_EQ(step(original, number).size(), 3u);
  }
}

// Against a run that was never interrupted, which the test above alone would not prove.
TEST(State, NothingIsMissingFromIt) {
  Workers uninterrupted(layout(), 3, kOptions), first(layout(), 3, kOptions), second(layout(), 3, kOptions);
  for (unsigned number = 0; number < 6; ++number) {
    step(uninterrupted, number);
    step(first, number);
  }
  for (int rank = 0; rank < 3; ++rank) second.reducer(rank).load_state(first.reducer(rank).state());
  for (unsigned number = 6; number < 12; ++number) ASSERT_EQ(step(uninterrupted, number), step(second, number)) << number;
}

TEST(State, WhatDoesNotFitIsRefusedAndChangesNothing) {
  Workers workers(layout(), 3, kOptions);
  step(workers, 0);
  Reducer& reducer = workers.reducer(0);
  const auto good = reducer.state();
  const auto expect_refused = [&](auto spoil, const char* what) {
    auto bad = good;
    bad[0].residual[0] += 1;  // would be seen if it were loaded
    spoil(bad);
    try {
      reducer.load_state(bad);
      ADD_FAILURE() << what << " was loaded";
    } catch (const StateError&) {
    }
    EXPECT_EQ(reducer.state()[0].residual, good[0].residual) << what;
  };
  expect_refused([](auto& state) { state.pop_back(); }, "too few parameters");
  expect_refused([](auto& state) { state[2].name = "d"; }, "another name");
  expect_refused([](auto& state) { state[2].residual.pop_back(); }, "a short residual");
  expect_refused([](auto& state) { state[2].residual[5] = std::nanf(""); }, "a residual that is not finite");
  expect_refused([](auto& state) { state[1].residual.resize(64); }, "a residual without feedback");
  expect_refused([](auto& state) { state[2].memory.pop_back(); }, "a short memory");
  expect_refused([](auto& state) { state[2].memory.push_back(std::byte{0}); }, "a long memory");
  expect_refused([](auto& state) { state[2].memory[0] = std::byte{99}; }, "an unknown version");
  expect_refused([](auto& state) { state[2].memory[1] = std::byte{1}; }, "chunks of 32,769");
  expect_refused([](auto& state) { state[1].memory = state[2].memory; }, "a memory where there is none");
  expect_refused([](auto& state) { std::fill(state[2].memory.begin() + 1, state[2].memory.end(), std::byte{0xff}); }, "NaN thresholds");
}

TEST(State, WithoutItsMemoryEf21BeginsAnew) {
  const ReducerOptions options{.compressor = "ef21:density=0.1"};
  Workers used(layout(), 2, options), begun(layout(), 2, options), fresh(layout(), 2, options);
  Gradients gradients = make_gradients("normal", 2, layout().elements());
  used.step(gradients);
  for (int rank = 0; rank < 2; ++rank) {
    auto state = used.reducer(rank).state();
    for (ParameterState& of_parameter : state) of_parameter.memory.clear();
    begun.reducer(rank).load_state(state);
  }
  Gradients one = make_gradients("normal", 2, layout().elements(), 2), other = one;
  begun.step(one);
  fresh.step(other);
  EXPECT_EQ(one, other);
}

// -g is the residual, to which no mean can be added.
TEST(State, AFailedStepLeavesEf21AsItWas) {
  Workers workers(layout(), 2, {.compressor = "ef21:density=0.1"});
  Gradients gradients = make_gradients("normal", 2, layout().elements());
  workers.step(gradients);
  const auto before = workers.reducer(0).state();
  in_parallel(2, [&](int rank, Communicator& communicator) {
    Gradients own = make_gradients("normal", 2, layout().elements(), 7);
    auto& gradient = own[static_cast<std::size_t>(rank)];
    workers.reducer(rank).begin_step();
    Reduction finite = workers.reducer(rank).reduce(parameters_of(layout(), gradient, 0, 1));
    run(finite, communicator);
    if (rank == 1) gradient[layout().offset(1)] = std::nanf("");
    Reduction failing = workers.reducer(rank).reduce(parameters_of(layout(), gradient, 1));
    run(failing, communicator);
    EXPECT_FALSE(workers.reducer(rank).end_step());
    EXPECT_TRUE(std::isnan(gradient[0]));
  });
  const auto after = workers.reducer(0).state();
  for (std::size_t p = 0; p < after.size(); ++p) {
    EXPECT_EQ(after[p].residual, before[p].residual);
    EXPECT_EQ(after[p].memory, before[p].memory);
  }
}

TEST(State, LossScalesOfPowersOfTwoDoNotShow) {
  Workers plain(layout(), 3, kOptions), scaled(layout(), 3, kOptions);
  for (unsigned number = 0; number < 4; ++number) {
    const float scale = number % 2 ? 65536.0f : 1024.0f;
    Gradients one = make_gradients("normal", 3, layout().elements(), number), other = one;
    for (auto& gradient : other)
      for (float& value : gradient) value *= scale;
    plain.step(one);
    scaled.step(other, {0}, static_cast<double>(scale));
    for (auto& gradient : other)
      for (float& value : gradient) value /= scale;
    ASSERT_EQ(one, other);
    for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(plain.residual(rank), scaled.residual(rank));
  }
}

TEST(Rollback, DestroyedAtAnyCollectiveResidualsAreAsBefore) {
  Workers workers(layout(), 2, {.compressor = "casq:bits=2,retrain=1", .rules = {{"b", "none"}, {"c", "bf16:feedback=on"}}});
  Gradients gradients = make_gradients("normal", 2, layout().elements());
  workers.step(gradients);
  Reducer& reducer = workers.reducer(0);
  const auto before = reducer.state();
  for (int rounds = 0; rounds < 2; ++rounds) {  // of the casq message: training, payload
    std::vector<float> gradient = make_gradients("normal", 1, layout().elements(), 7)[0];
    {
      Reduction reduction = reducer.reduce(parameters_of(layout(), gradient));
      for (int i = 0; i <= rounds; ++i) ASSERT_NE(reduction.next(), nullptr);
      EXPECT_THROW(reducer.reduce(parameters_of(layout(), gradient)), ArgumentError);  // the lane is busy
    }
    const auto after = reducer.state();
    for (std::size_t p = 0; p < after.size(); ++p) {
      EXPECT_EQ(after[p].residual, before[p].residual);
      EXPECT_EQ(after[p].steps, before[p].steps);
    }
  }
}

class HalfGradients : public ::testing::TestWithParam<ElementType> {};

// Small integers are exact in all types, and so is their mean over two workers of equal gradients.
TEST_P(HalfGradients, KeepTheirType) {
  for (const char* spec : {"none", "casq:bits=2", "bf16", "fp16"}) {
    const Layout two = Layout::flat(40000);
    std::vector<std::vector<std::uint16_t>> halves(2, std::vector<std::uint16_t>(40000));
    const bool is_bf16 = GetParam() == ElementType::kBfloat16;
    for (auto& half : halves)
      for (std::size_t i = 0; i < half.size(); ++i) half[i] = i % 2 ? (is_bf16 ? 0xbf80 : 0xbc00) : (is_bf16 ? 0x4000 : 0x4000);  // -1, 2
    const auto inputs = halves;
    in_parallel(2, [&](int rank, Communicator& communicator) {
      Reducer reducer(two, {.compressor = spec, .rank = rank, .world_size = 2});
      const ParameterGradient gradient{0, GetParam(), std::as_writable_bytes(std::span(halves[static_cast<std::size_t>(rank)]))};
      Reduction reduction = reducer.reduce({&gradient, 1});
      run(reduction, communicator);
    });
    EXPECT_EQ(halves, inputs) << spec;
  }
}

INSTANTIATE_TEST_SUITE_P(Both, HalfGradients, ::testing::Values(ElementType::kBfloat16, ElementType::kFloat16));

}  // namespace
}  // namespace thinwire::testing
