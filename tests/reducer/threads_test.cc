// Any number of threads a worker ends with the same bits: means, residuals, memories and figures.
#include <bit>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "reducer/row_specs.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"
#include "sanitized.h"
#include "thinwire/errors.h"

namespace thinwire::testing {
namespace {

// The sanitizers are slow, and feedback has its threads' loops beside all others.
constexpr bool kWithoutFeedbackToo = !kSanitized;

// Every row, with and without feedback, by each way in which it can be averaged.
std::vector<std::string> specs() {
  std::vector<std::string> all;
  for (const Row& row : rows()) {
    std::vector<std::string> of_row = {beginning_of(row)};
    for (const SpecParameter& parameter : row.info.parameters) {
      if (parameter.name != "feedback" && parameter.name != "reduce") continue;
      std::vector<std::string> extended;
      for (const std::string& spec : of_row)
        for (const std::string& choice : parameter.choices)
          if (choice != "auto" && (kWithoutFeedbackToo || choice != "off")) extended.push_back(spec + parameter.name + "=" + choice + ",");
      of_row = extended;
    }
    for (const std::string& spec : of_row) all.push_back(finished(spec));
  }
  return all;
}

// What rows say is worth a case beyond that.
std::vector<std::string> further_specs() {
  std::vector<std::string> all;
  for (const Row& row : rows())
    for (const std::string& settings : row.trials.further) all.push_back(further_spec(row, settings));
  return all;
}

// All that a worker knows after some steps.
struct Outcome {
  std::vector<std::vector<std::byte>> means;  // by step
  std::vector<ParameterState> states;
  Counters counters;
};

struct Trained {
  ElementType type = ElementType::kFloat32;
  unsigned steps = 3;
  double loss_scale = 1;
};

std::vector<std::byte> bytes_of(std::span<const float> values, ElementType type) {
  if (type == ElementType::kFloat32) {
    const auto bytes = std::as_bytes(values);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::uint16_t> halves;  // cut off
  for (const float value : values) halves.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
  const auto bytes = std::as_bytes(std::span<const std::uint16_t>(halves));
  return {bytes.begin(), bytes.end()};
}

std::vector<ParameterGradient> gradients_of(const Layout& layout, std::span<std::byte> bytes, ElementType type) {
  std::vector<ParameterGradient> gradients;
  for (std::size_t i = 0; i < layout.parameters().size(); ++i)
    gradients.push_back({static_cast<std::uint32_t>(i), type,
                         bytes.subspan(layout.offset(i) * element_bytes(type),
                                       layout.parameters()[i].elements() * element_bytes(type))});
  return gradients;
}

std::vector<Outcome> train(const Layout& layout, int workers, ReducerOptions options, const Trained& trained) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(workers));
  std::vector<Gradients> inputs;
  for (unsigned step = 0; step < trained.steps; ++step)
    inputs.push_back(make_gradients("laplace", workers, layout.elements(), step));
  options.world_size = workers;
  in_parallel(workers, [&](int rank, Communicator& communicator) {
    ReducerOptions own = options;
    own.rank = rank;
    Reducer reducer(layout, own);
    Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    for (unsigned step = 0; step < trained.steps; ++step) {
      std::vector<std::byte> gradient = bytes_of(inputs[step][static_cast<std::size_t>(rank)], trained.type);
      {
        Reduction reduction = reducer.reduce(gradients_of(layout, gradient, trained.type), 0, trained.loss_scale);
        run(reduction, communicator);
      }
      outcome.means.push_back(std::move(gradient));
    }
    outcome.states = reducer.state();
    outcome.counters = reducer.counters();
  });
  return outcomes;
}

void expect_same(const std::vector<Outcome>& one, const std::vector<Outcome>& other) {
  for (std::size_t rank = 0; rank < one.size(); ++rank) {
    SCOPED_TRACE("worker " + std::to_string(rank));
    ASSERT_EQ(one[rank].means == other[rank].means, true);
    for (std::size_t i = 0; i < one[rank].states.size(); ++i) {
      const ParameterState &state = one[rank].states[i], &its = other[rank].states[i];
      ASSERT_EQ(state.steps, its.steps);
      ASSERT_EQ(state.memory == its.memory, true);
      ASSERT_EQ(state.residual.size(), its.residual.size());
      ASSERT_TRUE(state.residual.empty() ||
                  std::memcmp(state.residual.data(), its.residual.data(), 4 * state.residual.size()) == 0);
    }
    EXPECT_EQ(one[rank].counters.measured_energy, other[rank].counters.measured_energy);
    EXPECT_EQ(one[rank].counters.error_energy, other[rank].counters.error_energy);
    EXPECT_EQ(one[rank].counters.payload_bytes, other[rank].counters.payload_bytes);
  }
}

// Sanitizers are slow, and see as much with one number of threads.
const std::vector<int> kThreads = kSanitized ? std::vector{3} : std::vector{2, 3, 8};
const std::vector<std::int64_t> kRows = kSanitized ? std::vector<std::int64_t>{450} : std::vector<std::int64_t>{1, 100, 2500};
const std::int64_t kHalfRows = kSanitized ? 450 : 2000, kMessageRows = kSanitized ? 100 : 300;

void expect_same_for_any_threads(const Layout& layout, int workers, ReducerOptions options, const Trained& trained,
                                 const std::vector<int>& tried = kThreads) {
  const std::vector<Outcome> expected = train(layout, workers, options, trained);
  for (const int threads : tried) {
    SCOPED_TRACE(options.compressor + ", " + std::to_string(workers) + " workers, " + std::to_string(layout.elements()) +
                 " elements, " + std::to_string(threads) + " threads");
    options.threads = threads;
    expect_same(expected, train(layout, workers, options, trained));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

class Threads : public ::testing::TestWithParam<std::string> {};
class ThreadsToo : public ::testing::TestWithParam<std::string> {};

std::string case_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

TEST_P(Threads, DoNotChangeABit) {
  for (const int workers : kSanitized ? std::vector{2} : std::vector{1, 3})  // threads divide what is a worker's own
    for (const std::int64_t rows : kRows)
      expect_same_for_any_threads(Layout({{"a", {rows, 80}}, {"b", {7}}, {"c", {rows, 40}}, {"none", {0}}}), workers,
                                  {.compressor = GetParam(), .measure_every = 2}, {.steps = 2});
}

TEST_P(Threads, DoNotChangeABitOfHalvesUnderALossScale) {
  expect_same_for_any_threads(Layout({{"a", {kHalfRows, 80}}, {"b", {7}}}), 2, {.compressor = GetParam(), .measure_every = 1},
                              {.type = ElementType::kBfloat16, .steps = kSanitized ? 2U : 3U, .loss_scale = 1024});
}

TEST_P(ThreadsToo, DoNotChangeABit) {
  expect_same_for_any_threads(Layout({{"a", {kSanitized ? 450 : 900, 80}}, {"b", {7}}}), 2, {.compressor = GetParam(), .measure_every = 2}, {.steps = 2}, {3});
}

INSTANTIATE_TEST_SUITE_P(EveryCompressor, Threads, ::testing::ValuesIn(specs()), case_name);
INSTANTIATE_TEST_SUITE_P(FurtherSpecs, ThreadsToo, ::testing::ValuesIn(further_specs()), case_name);

TEST(ThreadsOfAWorker, SeveralMessages) {
  const std::vector<Rule> rules = {{"b", "none"}, {"c", "bf16:feedback=on"}, {"d", "casq:bits=3,reduce=scatter"}};
  const std::vector<std::int64_t> shape{kMessageRows, 500};
  expect_same_for_any_threads(Layout({{"a", shape}, {"b", shape}, {"c", shape}, {"d", shape}, {"e", {9}}}), 3,
                              {.compressor = "casq:bits=1", .rules = rules, .measure_every = 1}, {});
}

// Wherever it is, and however many pieces were opened when it was found: residuals are as they were, and the mean is NaN.
TEST(ThreadsOfAWorker, NonFiniteGradients) {
  const Layout layout({{"a", {6, 32768}}});
  for (const std::string spec : {"casq:reduce=gather", "casq:reduce=scatter", "bf16:feedback=on"}) {
    Workers workers(layout, 2, {.compressor = spec, .threads = 3});
    Gradients gradients = make_gradients("normal", 2, layout.elements());
    workers.step(gradients);
    for (std::size_t place = 5; place < layout.elements(); place += 60000) {
      const auto before = workers.reducer(0).state();
      gradients = make_gradients("normal", 2, layout.elements(), 2);
      gradients[0][place] = std::numeric_limits<float>::infinity();
      workers.step(gradients);
      const auto after = workers.reducer(0).state();
      EXPECT_EQ(before[0].residual, after[0].residual);
      EXPECT_EQ(before[0].memory, after[0].memory);
      EXPECT_EQ(before[0].steps, after[0].steps);
      EXPECT_TRUE(std::isnan(gradients[0][0]) && std::isnan(gradients[1][layout.elements() - 1]));
    }
  }
}

TEST(ThreadsOfAWorker, ForeignBytesAreRefusedAndResidualsPutBack) {
  const Layout layout({{"a", {10, 32768}}});
  Reducer reducer(layout, {.compressor = "casq:bits=2", .world_size = 2, .threads = 3});
  const Gradients inputs = make_gradients("normal", 1, layout.elements());
  const auto step = [&](bool spoilt) {
    std::vector<float> gradient = inputs[0];
    Reduction reduction = reducer.reduce(parameters_of(layout, gradient));
    while (const Collective* collective = reduction.next())
      for (std::size_t worker = 0; worker < 2 && !collective->result.empty(); ++worker) {
        const auto theirs = collective->result.subspan(worker * collective->data.size(), collective->data.size());
        std::ranges::copy(collective->data, theirs.begin());
        if (spoilt && worker == 1) std::fill(theirs.end() - 9000, theirs.end(), std::byte{0xff});  // the last table is NaN
      }
  };
  step(false);
  const auto before = reducer.state();
  EXPECT_THROW(step(true), PayloadError);
  EXPECT_EQ(reducer.state()[0].residual, before[0].residual);
  step(false);
  EXPECT_NE(reducer.state()[0].residual, before[0].residual);
}

TEST(ThreadsOfAWorker, AreSharedByItsLanes) {
  constexpr int kWorkers = 2, kLanes = 3;
  const Layout layout({{"a", {500, 500}}, {"b", {300, 500}}, {"c", {400, 500}}});
  Workers one_thread(layout, kWorkers, {.compressor = "casq:bits=2,retrain=2"});
  std::vector<std::vector<std::unique_ptr<Communicator>>> groups;
  for (int lane = 0; lane < kLanes; ++lane) groups.push_back(make_local_communicators(kWorkers, std::chrono::seconds(60)));
  std::vector<std::unique_ptr<Reducer>> reducers;
  for (int rank = 0; rank < kWorkers; ++rank)
    reducers.push_back(std::make_unique<Reducer>(
        layout, ReducerOptions{.compressor = "casq:bits=2,retrain=2", .rank = rank, .world_size = kWorkers, .lanes = kLanes,
                               .threads = 3}));
  for (unsigned step = 0; step < 5; ++step) {
    Gradients gradients = make_gradients("normal", kWorkers, layout.elements(), step), expected = gradients;
    one_thread.step(expected, {0, 1, 2});
    on_threads(kWorkers * kLanes, [&](int thread) {
      const int lane = thread % kLanes;
      const auto r = static_cast<std::size_t>(thread / kLanes), l = static_cast<std::size_t>(lane);
      Reduction reduction = reducers[r]->reduce(parameters_of(layout, gradients[r], l, l + 1), lane);
      run(reduction, *groups[l][r]);
    });
    ASSERT_EQ(gradients == expected, true) << "at step " << step;
  }
}

TEST(ThreadsOfAWorker, AreNoneOfTheOthersBusiness) {
  const Layout layout = Layout::flat(10);
  const Reducer one(layout, {.threads = 1}), many(layout, {.threads = 256});
  EXPECT_EQ(one.description(), many.description());
  EXPECT_EQ(one.fingerprint(), many.fingerprint());
}

TEST(ThreadsOfAWorker, AreFrom1To256) {
  for (const int threads : {0, -1, 257, std::numeric_limits<int>::max()}) {
    try {
      const Reducer reducer(Layout::flat(10), {.threads = threads});
      ADD_FAILURE() << threads << " threads were taken";
    } catch (const ArgumentError& error) {
      EXPECT_EQ(error.what(), "threads is " + std::to_string(threads) + "; it must be from 1 to 256");
    }
  }
}

}  // namespace
}  // namespace thinwire::testing
