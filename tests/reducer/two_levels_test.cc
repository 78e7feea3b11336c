// Workers that share hosts, as threads: what they give each other by memory and by messages, how they divide the work, and what they refuse.
#include <cmath>
#include <cstring>
#include <latch>
#include <limits>

#include <gtest/gtest.h>

#include "reducer/host_parts.h"
#include "reducer/row_specs.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"
#include "sanitized.h"
#include "thinwire/errors.h"

namespace thinwire::testing {
namespace {

using Hosts = std::vector<int>;

const std::vector<Hosts>& topologies() {
  static const std::vector<Hosts> all = {{0, 0, 1, 1}, {0, 1, 0, 1, 1}, {7, 7, 7, 3}, {0, 0}};
  return all;
}

// The sanitizers are slow, and look for what goes wrong alike whatever the numbers are.
Layout sample_layout() {
  return Layout({{"matrix", {kSanitized ? 30 : 300, 250}}, {"odd", {40001}}, {"none", {0, 4}}, {"one", {1}}, {"filters", {64, 16, 3, 3}}});
}

struct Outcome {
  std::vector<Gradients> means;  // by step
  std::vector<std::vector<ParameterState>> states;
  std::vector<Counters> counters;
};

Outcome train(const Layout& layout, const Hosts& hosts, ReducerOptions options, int steps = 3, int lanes = 1) {
  const int workers = static_cast<int>(hosts.size());
  options.world_size = workers;
  options.hosts = hosts;
  options.lanes = lanes;
  Outcome outcome;
  outcome.states.resize(hosts.size());
  outcome.counters.resize(hosts.size());
  for (int step = 0; step < steps; ++step)
    outcome.means.push_back(make_gradients("laplace", workers, layout.elements(), static_cast<unsigned>(step)));
  in_parallel(workers, [&](int rank, Communicator& communicator) {
    ReducerOptions own = options;
    own.rank = rank;
    Reducer reducer(layout, own);
    const auto index = static_cast<std::size_t>(rank);
    for (int step = 0; step < steps; ++step) {
      Reduction reduction = reducer.reduce(parameters_of(layout, outcome.means[static_cast<std::size_t>(step)][index]));
      run(reduction, communicator);
    }
    outcome.states[index] = reducer.state();
    outcome.counters[index] = reducer.counters();
  }, hosts);
  return outcome;
}

void expect_same(const Gradients& means) {
  for (std::size_t w = 1; w < means.size(); ++w)
    ASSERT_EQ(std::memcmp(means[0].data(), means[w].data(), means[0].size() * sizeof(float)), 0) << "workers 0 and " << w;
}

class TwoLevels : public ::testing::TestWithParam<Hosts> {};

TEST_P(TwoLevels, UncompressedTheyAreMeans) {
  const Layout layout = sample_layout();
  const Gradients inputs = make_gradients("laplace", static_cast<int>(GetParam().size()), layout.elements(), 0);
  const Outcome outcome = train(layout, GetParam(), {.compressor = "none"}, 1);
  expect_same(outcome.means[0]);
  for (std::size_t i = 0; i < layout.elements(); ++i) {
    double sum = 0;
    for (const auto& input : inputs) sum += static_cast<double>(input[i]);
    ASSERT_NEAR(static_cast<double>(outcome.means[0][0][i]), sum / static_cast<double>(inputs.size()), 1e-6) << i;
  }
}

TEST_P(TwoLevels, MemoryAndMessagesGiveTheSameBits) {
  const Layout layout = sample_layout();
  std::vector<std::string> specs = {"casq:bits=2,retrain=2,reduce=scatter", "s2"};
  if (!kSanitized) specs.insert(specs.end(), {"casq:bits=2,retrain=2", "casq:rate=1", "powersgd"});
  for (const std::string& spec : specs) {
    SCOPED_TRACE(spec);
    const Outcome shared = train(layout, GetParam(), {.compressor = spec});
    const Outcome sent = train(layout, GetParam(), {.compressor = spec, .host_memory = false});
    for (std::size_t step = 0; step < shared.means.size(); ++step) {
      expect_same(shared.means[step]);
      ASSERT_EQ(std::memcmp(shared.means[step][0].data(), sent.means[step][0].data(), layout.elements() * sizeof(float)), 0);
    }
    for (std::size_t w = 0; w < shared.states.size(); ++w)
      for (std::size_t p = 0; p < shared.states[w].size(); ++p) ASSERT_EQ(shared.states[w][p].residual, sent.states[w][p].residual);
    // The same figure, whatever carries it; beside it by memory a few bytes at every meeting.
    for (std::size_t w = 0; w < shared.counters.size(); ++w)
      EXPECT_NEAR(shared.counters[w].within_host_bytes, sent.counters[w].within_host_bytes, 500);
  }
}

TEST_P(TwoLevels, ThreadsDoNotShow) {
  const Layout layout = sample_layout();
  const Outcome one = train(layout, GetParam(), {.compressor = "casq:bits=2"});
  const Outcome three = train(layout, GetParam(), {.compressor = "casq:bits=2", .threads = 3});
  for (std::size_t step = 0; step < one.means.size(); ++step) ASSERT_EQ(one.means[step], three.means[step]);
}

INSTANTIATE_TEST_SUITE_P(Hosts, TwoLevels, ::testing::ValuesIn(topologies()));

// Sum of inputs = W mean + what is kept, where a part's owner keeps it for several workers.
TEST(Hosts, WhatIsNotSentIsKept) {
  const Hosts hosts = {0, 0, 0, 1, 1};
  const Layout layout = sample_layout();
  const Gradients inputs = make_gradients("laplace", 5, layout.elements(), 0);
  const Outcome outcome = train(layout, hosts, {.compressor = "casq:bits=1"}, 1);
  std::vector<double> kept(layout.elements());
  for (int rank = 0; rank < 5; ++rank) {
    const Reducer reducer(layout, {.compressor = "casq:bits=1", .rank = rank, .world_size = 5, .hosts = hosts});
    for (std::size_t p = 0; p < layout.parameters().size(); ++p) {
      const auto& residual = outcome.states[static_cast<std::size_t>(rank)][p].residual;
      EXPECT_EQ(residual.size(), reducer.part(p).elements);
      for (std::size_t i = 0; i < residual.size(); ++i)
        kept[layout.offset(p) + reducer.part(p).first + i] += static_cast<double>(residual[i]) * 5 / 2;
    }
  }
  for (std::size_t i = 0; i < layout.elements(); ++i) {
    double sum = 0;
    for (const auto& input : inputs) sum += static_cast<double>(input[i]);
    ASSERT_NEAR(sum, 5 * static_cast<double>(outcome.means[0][0][i]) + kept[i], 1e-4) << i;
  }
}

TEST(Hosts, WhatLeavesAHostIsItsPart) {
  constexpr int kSide = kSanitized ? 256 : 1024;
  const Layout layout({{"matrix", {kSide, kSide}}});
  const Outcome flat = train(layout, {0, 1, 2, 3}, {.compressor = "qsgd:bits=4,reduce=gather"});
  const Outcome levels = train(layout, {0, 0, 1, 1}, {.compressor = "qsgd:bits=4,reduce=gather"});
  EXPECT_EQ(flat.counters[0].within_host_bytes, 0);
  for (std::size_t w = 0; w < 4; ++w) {
    EXPECT_NEAR(levels.counters[w].traffic_bytes, flat.counters[w].traffic_bytes / 6, 0.01 * flat.counters[w].traffic_bytes);
    // In each of three steps half of it to the other worker, and the means of half of it.
    EXPECT_NEAR(levels.counters[w].within_host_bytes, 3 * 2 * (kSide * kSide / 2 * 4), 500);
  }
}

// A worker is late with the means of a bucket, while the other one puts the gradients of the next into memory.
TEST(Hosts, MeansAreReadBeforeAnythingIsWrittenOverThem) {
  const Hosts together = {0, 0};
  for (int chunks = 1; chunks <= 12; ++chunks) {
    SCOPED_TRACE(std::to_string(chunks) + " chunks, then 6");
    const Layout layout({{"one", {chunks, 32768}}, {"other", {6, 32768}}});
    const Gradients inputs = make_gradients("laplace", 2, layout.elements(), 1);
    Gradients means = inputs;
    std::latch written{1};
    const std::size_t larger = chunks < 6 ? 1 : 0;
    in_parallel(2, [&](int rank, Communicator& communicator) {
      const auto index = static_cast<std::size_t>(rank);
      Reducer reducer(layout, {.compressor = "none", .rank = rank, .world_size = 2, .hosts = together});
      // The larger one provides the memory; the smaller one tells how often they meet.
      int meetings = 0;
      for (const std::size_t parameter : {larger, 1 - larger}) {
        std::vector<float> gradient = inputs[index];
        Reduction reduction = reducer.reduce(parameters_of(layout, gradient, parameter, parameter + 1));
        for (meetings = 0; const Collective* collective = reduction.next(); ++meetings) communicator.perform(*collective);
      }
      {
        Reduction reduction = reducer.reduce(parameters_of(layout, means[index], 0, 1));
        for (int left = meetings; const Collective* collective = reduction.next();) {
          communicator.perform(*collective);
          if (--left == 0 && rank == 1) written.wait();
        }
      }
      Reduction next = reducer.reduce(parameters_of(layout, means[index], 1, 2));
      const Collective* collective = next.next();
      if (rank == 0) written.count_down();
      for (; collective != nullptr; collective = next.next()) communicator.perform(*collective);
    }, together);
    for (std::size_t i = 0; i < layout.elements(); ++i)
      for (std::size_t rank = 0; rank < 2; ++rank) ASSERT_EQ(means[rank][i], 0.5F * inputs[0][i] + 0.5F * inputs[1][i]) << i;
  }
}

TEST(Hosts, PartsAreEvenAndWhole) {
  const Layout layout = sample_layout();
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.info.name);
    ReducerOptions options;
    options.compressor = finished(beginning_of(row));
    const Policy policy(layout, options);
    for (const int count : {1, 2, 3, 8}) {
      const HostParts parts = divide_layout(layout, policy, count);
      ASSERT_EQ(parts.size(), static_cast<std::size_t>(count));
      for (std::size_t p = 0; p < layout.parameters().size(); ++p) {
        std::uint64_t next = 0;
        for (const auto& part : parts) {
          ASSERT_EQ(part[p].first, next);
          next += part[p].elements;
        }
        ASSERT_EQ(next, layout.parameters()[p].elements());
        if (row.info.unit == Unit::kParameter && next > 0) {
          std::size_t owners = 0;
          for (const auto& part : parts) owners += part[p].elements > 0 ? 1 : 0;
          ASSERT_EQ(owners, 1u);
        }
      }
    }
  }
}

TEST(Hosts, PartsOfMatricesBetweenRowsAreMatrices) {
  const Layout layout({{"matrix", {10, 7}}, {"vector", {100000}}});
  const Layout part = layout_of_part(layout, {{7, 21}, {32768, 32768}});
  EXPECT_EQ(part.parameters()[0].shape, (std::vector<std::int64_t>{3, 7}));
  EXPECT_EQ(part.parameters()[1].shape, (std::vector<std::int64_t>{32768}));
  EXPECT_EQ(layout_of_part(layout, {{1, 5}, {0, 0}}).parameters()[0].shape, (std::vector<std::int64_t>{5}));
}

TEST(Hosts, AreNamedForEveryWorker) {
  const Layout layout({{"p", {8}}});
  try {
    const Reducer reducer(layout, {.world_size = 3, .hosts = {0, 1}});
    FAIL() << "was taken";
  } catch (const ArgumentError& error) {
    EXPECT_STREQ(error.what(), "hosts names the host of 2 workers; there are 3");
  }
  const Reducer alone(layout, {.world_size = 2, .hosts = {5, 9}});
  EXPECT_TRUE(alone.hosts().empty());
  EXPECT_EQ(alone.fingerprint(), Reducer(layout, {.world_size = 2}).fingerprint());
  EXPECT_NE(Reducer(layout, {.world_size = 2, .hosts = {5, 5}}).fingerprint(), alone.fingerprint());
}

TEST(Hosts, AreFoundByWhatWorkersShare) {
  EXPECT_FALSE(host_identity().empty());
  EXPECT_EQ(number_hosts(std::vector<std::string>{"b", "a", "b", "c"}), (Hosts{0, 1, 0, 2}));
  in_parallel(3, [](int, Communicator& communicator) { EXPECT_EQ(find_hosts(communicator), (Hosts{0, 0, 0})); });
  EXPECT_TRUE(has_two_levels(Hosts{0, 0, 1}));
  EXPECT_FALSE(has_two_levels(Hosts{0, 1, 2}));
  EXPECT_FALSE(has_two_levels(Hosts{0, 0, 0}));
  EXPECT_FALSE(has_two_levels(Hosts{}));
}

TEST(Hosts, CommunicatorsThatKnowNoneSaySo) {
  const Layout layout({{"p", {8}}});
  std::string said;
  in_parallel(2, [&](int rank, Communicator& communicator) {
    Reducer reducer(layout, {.compressor = "none", .rank = rank, .world_size = 2, .hosts = {0, 0}});
    std::vector<float> gradient(8);
    Reduction reduction = reducer.reduce(parameters_of(layout, gradient));
    try {
      run(reduction, communicator);
    } catch (const ArgumentError& error) {
      if (rank == 0) said = error.what();
    }
  });
  EXPECT_NE(said.find("was made without hosts"), std::string::npos) << said;
}

TEST(Hosts, StatesOfAnotherDivisionAreTakenWholeOrNotAtAll) {
  const Layout layout({{"p", {100000}}});
  const ReducerOptions options = {.compressor = "casq:bits=2", .rank = 1, .world_size = 4, .hosts = {0, 0, 1, 1}};
  Reducer reducer(layout, options);
  const ParameterRange part = reducer.part(0);
  ASSERT_GT(part.first, 0u);
  ParameterState state{"p", 0, std::vector<float>(100000), {}};
  for (std::size_t i = 0; i < state.residual.size(); ++i) state.residual[i] = static_cast<float>(i);
  reducer.load_state(std::span(&state, 1));
  const auto loaded = reducer.state()[0].residual;
  ASSERT_EQ(loaded.size(), part.elements);
  EXPECT_EQ(loaded.front(), static_cast<float>(part.first));
  EXPECT_EQ(loaded.back(), static_cast<float>(part.first + part.elements - 1));
  state.residual.resize(part.elements - 1);
  EXPECT_THROW(reducer.load_state(std::span(&state, 1)), StateError);
  EXPECT_EQ(reducer.state()[0].residual, loaded);
}

TEST(Hosts, LanesShareMemoryOfTheirOwn) {
  const Hosts hosts = {0, 0, 1, 1};
  const Layout layout({{"a", {70000}}, {"b", {64, 1000}}, {"c", {30}}});
  const Outcome expected = train(layout, hosts, {.compressor = "casq:bits=2"}, 1);
  Gradients gradients = make_gradients("laplace", 4, layout.elements(), 0);
  std::vector<std::unique_ptr<Reducer>> reducers;
  for (int rank = 0; rank < 4; ++rank)
    reducers.push_back(std::make_unique<Reducer>(layout, ReducerOptions{.compressor = "casq:bits=2", .rank = rank, .world_size = 4, .lanes = 3, .hosts = hosts}));
  for (auto& reducer : reducers) reducer->begin_step();
  on_threads(3, [&](int lane) {
    in_parallel(4, [&](int rank, Communicator& communicator) {
      const auto p = static_cast<std::size_t>(lane);
      const auto index = static_cast<std::size_t>(rank);
      Reduction reduction = reducers[index]->reduce(parameters_of(layout, gradients[index], p, p + 1), lane);
      run(reduction, communicator);
    }, hosts);
  });
  for (auto& reducer : reducers) EXPECT_TRUE(reducer->end_step());
  expect_same(gradients);
  EXPECT_EQ(gradients[0], expected.means[0][0]);
}

TEST(Hosts, APartThatIsNotFiniteFailsTheStepOfAll) {
  for (const bool kept : {false, true}) {
    const Hosts hosts = {0, 0, 1, 1};
    const Layout layout({{"p", {100000}}});
    Gradients gradients = make_gradients("laplace", 4, layout.elements(), 0);
    gradients[3][99999] = std::numeric_limits<float>::infinity();  // of the second part
    in_parallel(4, [&](int rank, Communicator& communicator) {
      Reducer reducer(layout, {.rank = rank, .world_size = 4, .hosts = hosts, .keep_old_residuals = kept});
      Reduction reduction = reducer.reduce(parameters_of(layout, gradients[static_cast<std::size_t>(rank)]));
      run(reduction, communicator);
      EXPECT_EQ(reducer.counters().failed_steps, 1u);
      EXPECT_EQ(reducer.counters().non_finite, 1u);
      EXPECT_EQ(reducer.state()[0].steps, 0u);
    }, hosts);
    for (const auto& gradient : gradients)
      for (const float value : gradient) ASSERT_TRUE(std::isnan(value));
  }
}

}  // namespace
}  // namespace thinwire::testing
