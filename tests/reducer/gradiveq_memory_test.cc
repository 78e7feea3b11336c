// What gradiveq learns, from which steps, and what becomes of it when the number of workers changes.
#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "reducer/deliver.h"
#include "reducer/gradiveq_samples.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

std::uint64_t payload_of_step(Workers& workers, Gradients gradients) {
  const std::uint64_t before = workers.reducer(0).counters().payload_bytes;
  workers.step(gradients);
  expect_alike(gradients);
  return workers.reducer(0).counters().payload_bytes - before;
}

std::vector<std::vector<std::size_t>> filters() { return slices_by_definition({64, 16, 3, 3}, "filter", 144); }

// --- the first step

class GradiveqBegins : public ::testing::TestWithParam<std::string> {};

TEST_P(GradiveqBegins, AtTheFirstStepThatHasSomethingToLearnFrom) {
  for (const float first : {0.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Workers workers(kConv, 2, {.compressor = "gradiveq:refresh=every,ratio=8,smallest=0," + GetParam()});
    Structured gradients(filters(), 3, 0.1f);
    for (int step = 0; step < 2; ++step) {
      const std::uint64_t bytes = payload_of_step(workers, Gradients(2, std::vector<float>(kConv.elements(), first)));
      EXPECT_GE(bytes, 4 * kConv.elements());
    }
    EXPECT_GE(payload_of_step(workers, gradients.draw(2)), 4 * kConv.elements());
    EXPECT_LE(payload_of_step(workers, gradients.draw(2)), 4 * kConv.elements() / 8 + 8) << "after steps of " << first;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryFeedback, GradiveqBegins, ::testing::Values("feedback=off", "feedback=on"),
                         [](const auto& spec) { return spec.index == 0 ? "Without" : "With"; });

// --- what a step leaves

// A step that has nothing to learn from counts as one, and leaves nothing: as if the cycle had one learning step less.
TEST(GradiveqLearns, NothingFromAStepInWhichNobodyUsedTheParameter) {
  for (const std::string feedback : {"off", "on", "flush"})
    for (const std::string rate : {"dims=4", "rate=3"}) {
      const std::string rest = ",lag=0,use=5,smallest=0,feedback=" + feedback + "," + rate;
      Workers with(kConv, 2, {.compressor = "gradiveq:learn=3" + rest}), without(kConv, 2, {.compressor = "gradiveq:learn=2" + rest});
      Structured gradients(filters(), 6, 0.3f);
      for (int step = 0; step < 4; ++step) {
        Gradients one = gradients.draw(2), other = one;
        if (step == 1) {
          Gradients unused(2, std::vector<float>(kConv.elements()));
          with.step(unused);
        }
        with.step(one);
        without.step(other);
        ASSERT_EQ(one, other) << feedback << ", " << rate << ", step " << step;
      }
    }
}

// One step of two buckets on every worker; whether it was committed.
bool step_as_one(Workers& workers, Gradients& gradients) {
  bool committed = true;
  in_parallel(workers.count(), [&](int rank, Communicator& communicator) {
    Reducer& reducer = workers.reducer(rank);
    reducer.begin_step();
    for (std::size_t bucket = 0; bucket < 2; ++bucket) {
      Reduction reduction = reducer.reduce(parameters_of(workers.layout(), gradients[static_cast<std::size_t>(rank)], bucket, bucket + 1));
      run(reduction, communicator);
    }
    const bool own = reducer.end_step();
    if (rank == 0) committed = own;
  });
  return committed;
}

class GradiveqForgets : public ::testing::TestWithParam<std::string> {};

// At every position of a cycle: a bucket of a step whose other bucket is not finite.
TEST_P(GradiveqForgets, WhatAFailedStepWouldHaveTaught) {
  const Layout layout({{"a", {64, 16, 3, 3}}, {"b", {30, 20}}});
  Workers workers(layout, 2, {.compressor = "gradiveq:smallest=0," + GetParam(), .keep_old_residuals = true});
  for (unsigned step = 0; step < 9; ++step) {
    std::vector<std::vector<ParameterState>> before;
    for (int rank = 0; rank < 2; ++rank) before.push_back(workers.reducer(rank).state());
    Gradients failing = make_gradients("normal", 2, layout.elements(), 100 + step);
    failing[step % 2].back() = std::nanf("");
    ASSERT_FALSE(step_as_one(workers, failing));
    for (int rank = 0; rank < 2; ++rank) {
      const auto after = workers.reducer(rank).state();
      for (std::size_t i = 0; i < after.size(); ++i) {
        const ParameterState& old = before[static_cast<std::size_t>(rank)][i];
        ASSERT_EQ(after[i].steps, old.steps);
        ASSERT_TRUE(std::ranges::equal(after[i].residual, old.residual) || old.residual.empty()) << "step " << step;
        if (!old.memory.empty()) { ASSERT_EQ(after[i].memory, old.memory) << "step " << step; }
      }
    }
    Gradients used = make_gradients("normal", 2, layout.elements(), step);
    ASSERT_TRUE(step_as_one(workers, used));
    expect_alike(used);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryKind, GradiveqForgets,
                         ::testing::Values("dims=4,learn=3,lag=2,use=3", "rate=3,learn=3,lag=0,use=3,feedback=on",
                                           "dims=4,learn=3,lag=1,use=3,feedback=flush", "refresh=every,ratio=4,feedback=on"),
                         [](const auto& spec) { return "Kind" + std::to_string(spec.index); });

// --- another number of workers

using States = std::vector<std::vector<ParameterState>>;  // [rank][parameter]

// As Attachment.load_state_dict() shares out what all workers have saved: of each parameter the longest memory, without residuals here.
std::vector<ParameterState> share_of(const States& states) {
  std::vector<ParameterState> shared = states[0];
  for (const auto& state : states)
    for (std::size_t i = 0; i < shared.size(); ++i)
      if (state[i].memory.size() > shared[i].memory.size()) shared[i].memory = state[i].memory;
  return shared;
}

struct Change {
  std::string kind;
  int from, to;
};

class GradiveqResized : public ::testing::TestWithParam<Change> {
 protected:
  // Owners differ; all workers have the same gradient, so that the mean does not depend on their number.
  static const Layout& layout() {
    static const Layout instance({{"a", {32, 8, 3, 3}}, {"b", {32, 8, 3, 3}}, {"c", {32, 8, 3, 3}}});
    return instance;
  }
  static const std::vector<float>& gradient(int step) {
    static Structured gradients(slices_by_definition({96, 8, 3, 3}, "filter", 72), 8, 0.3f);
    static std::vector<std::vector<float>> drawn;
    while (drawn.size() <= static_cast<std::size_t>(step)) drawn.push_back(gradients.draw(1)[0]);
    return drawn[static_cast<std::size_t>(step)];
  }
  static Workers make(int count) { return Workers(layout(), count, {.compressor = "gradiveq:smallest=0," + GetParam().kind}); }
  static States saved(Workers& workers) {
    States states;
    for (int rank = 0; rank < workers.count(); ++rank) states.push_back(workers.reducer(rank).state());
    return states;
  }
  static constexpr int kCycle = 3 + 2 + 4;
};

TEST_P(GradiveqResized, GoesOnInEveryPhase) {
  for (int changed_at = 1; changed_at < kCycle; ++changed_at) {
    Workers before = make(GetParam().from), after = make(GetParam().to), alone = make(1);
    for (int step = 0; step < changed_at + kCycle + 4; ++step) {
      if (step == changed_at) {
        const auto share = share_of(saved(before));
        for (int rank = 0; rank < after.count(); ++rank) after.reducer(rank).load_state(share);
      }
      Workers& now = step < changed_at ? before : after;
      Gradients means(static_cast<std::size_t>(now.count()), gradient(step)), reference(1, means[0]);
      const std::uint64_t bytes = now.reducer(0).counters().payload_bytes, reference_bytes = alone.reducer(0).counters().payload_bytes;
      now.step(means);
      alone.step(reference);
      expect_alike(means);
      SCOPED_TRACE("changed at step " + std::to_string(changed_at) + ", in step " + std::to_string(step));
      const std::uint64_t sent = now.reducer(0).counters().payload_bytes - bytes;
      const std::uint64_t expected = alone.reducer(0).counters().payload_bytes - reference_bytes;
      EXPECT_EQ(sent < 4 * layout().elements(), expected < 4 * layout().elements());
      const double error = relative_error(means[0], gradient(step));
      if (GetParam().kind.find("rate") == std::string::npos) {
        EXPECT_EQ(sent, expected);
        // Components that follow every step depend on how sums of other numbers of workers are rounded.
        EXPECT_LE(error, 1.5 * relative_error(reference[0], gradient(step)) + 1e-9);
      } else {
        EXPECT_LT(error, 0.05);  // bits may have been divided for others
      }
      if (HasFailure()) return;
    }
  }
}

// A worker's own saved state, or that of another one, as long as there are more of them: what the owners alone know is somewhere.
TEST_P(GradiveqResized, FindsWhatItsWorkersHold) {
  if (GetParam().from > GetParam().to) return;
  for (int changed_at = 1; changed_at < kCycle; ++changed_at) {
    Workers before = make(GetParam().from), after = make(GetParam().to);
    for (int step = 0; step < kCycle + 1; ++step) {
      if (step == changed_at) {
        const States states = saved(before);
        for (int rank = 0; rank < after.count(); ++rank)
          after.reducer(rank).load_state(states[static_cast<std::size_t>(after.count() - 1 - rank) % states.size()]);
      }
      Workers& now = step < changed_at ? before : after;
      const std::uint64_t sent = payload_of_step(now, Gradients(static_cast<std::size_t>(now.count()), gradient(step)));
      const bool is_every = GetParam().kind.find("every") != std::string::npos;
      const bool uses = is_every ? step > 0 : step >= 5 && step < kCycle;
      EXPECT_EQ(sent < 4 * layout().elements() / 3, uses) << "changed at step " << changed_at << ", in step " << step << ": " << sent << " bytes";
      if (HasFailure()) return;
    }
  }
}

std::vector<Change> changes() {
  std::vector<Change> all;
  for (const std::string kind : {"dims=8,learn=3,lag=2,use=4", "rate=4,learn=3,lag=2,use=4", "refresh=every,ratio=8"})
    for (const auto& [from, to] : {std::pair{2, 3}, {3, 2}, {4, 1}, {1, 4}}) all.push_back({kind, from, to});
  return all;
}

INSTANTIATE_TEST_SUITE_P(EveryKind, GradiveqResized, ::testing::ValuesIn(changes()), [](const auto& change) {
  const std::string kind = change.param.kind.substr(0, change.param.kind.find('='));
  return kind + "_" + std::to_string(change.param.from) + "_to_" + std::to_string(change.param.to);
});

// Bits that were divided for one worker, in the middle of their use by more.
TEST(GradiveqResizedCode, ComponentsWithoutALevelAreLeftOut) {
  struct Case {
    const char* rate;
    int workers;
    bool compressed;
  };
  for (const auto& [rate, workers, compressed] : {Case{"4", 4, true}, {"1", 16, true}, {"0.25", 16, false}}) {
    const std::string spec = std::string("gradiveq:smallest=0,learn=2,lag=0,use=4,rate=") + rate;
    Workers before(kConv, 1, {.compressor = spec}), after(kConv, workers, {.compressor = spec});
    Structured gradients(filters(), 8, 0.3f);
    std::uint64_t bytes = 0;
    for (int step = 0; step < 3; ++step) bytes = payload_of_step(before, gradients.draw(1));
    EXPECT_LT(bytes, kConv.elements());
    for (int rank = 0; rank < workers; ++rank) after.reducer(rank).load_state(before.reducer(0).state());
    for (int step = 0; step < 3; ++step) {
      Gradients means(static_cast<std::size_t>(workers), gradients.draw(1)[0]);
      const std::vector<float> exact = means[0];
      const std::uint64_t sent = after.reducer(0).counters().payload_bytes;
      after.step(means);
      expect_alike(means);
      SCOPED_TRACE(std::string(rate) + ", " + std::to_string(after.reducer(0).counters().payload_bytes - sent) + " bytes");
      if (compressed) { EXPECT_LT(after.reducer(0).counters().payload_bytes - sent, bytes); }
      EXPECT_LT(relative_error(means[0], exact), compressed ? 0.3 : 1e-9);
    }
  }
}

// --- what is sent

// The bytes that all workers post in one step.
std::vector<std::vector<std::byte>> posted(Workers& workers, Gradients gradients) {
  std::vector<std::vector<std::byte>> all;
  std::vector<Reduction> reductions;
  for (int rank = 0; rank < workers.count(); ++rank)
    reductions.push_back(workers.reducer(rank).reduce(parameters_of(workers.layout(), gradients[static_cast<std::size_t>(rank)])));
  while (true) {
    std::vector<Collective> collectives;
    for (Reduction& reduction : reductions)
      if (const Collective* const collective = reduction.next()) collectives.push_back(*collective);
    if (collectives.empty()) return all;
    for (const Collective& collective : collectives) all.emplace_back(collective.data.begin(), collective.data.end());
    deliver(collectives);
  }
}

class GradiveqSends : public ::testing::TestWithParam<std::string> {};

// What lies in memory that is used again is another thing in two groups of workers with the same state.
TEST_P(GradiveqSends, NothingButWhatFollowsFromGradientsAndState) {
  const Layout layout({{"a", {64, 16, 3, 3}}, {"b", {64, 16, 3, 3}}});
  const std::string spec = "gradiveq:smallest=0,feedback=on," + GetParam();
  Workers first(layout, 2, {.compressor = spec}), second(layout, 2, {.compressor = spec});
  for (unsigned step = 0; step < 4; ++step) {
    Gradients gradients = make_gradients("normal", 2, layout.elements(), step), others = make_gradients("laplace", 2, layout.elements(), 10 + step);
    first.step(gradients);
    second.step(others);
  }
  for (int rank = 0; rank < 2; ++rank) second.reducer(rank).load_state(first.reducer(rank).state());
  for (unsigned step = 4; step < 6; ++step) {
    Gradients gradients = make_gradients("normal", 2, layout.elements(), step);
    for (auto& gradient : gradients) std::fill_n(gradient.begin(), layout.elements() / 2, 0.0f);
    ASSERT_EQ(posted(first, gradients), posted(second, gradients)) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryKind, GradiveqSends,
                         ::testing::Values("dims=4,learn=1,lag=0,use=100", "rate=3,learn=1,lag=0,use=100",
                                           "dims=4,learn=1,lag=0,use=100/qsgd:bits=4,reduce=sum", "dims=4,learn=1,lag=0,use=100/qsgd:bits=4,reduce=gather",
                                           "refresh=every,ratio=4", "refresh=every,ratio=4/qsgd:bits=4,reduce=sum", "refresh=every,ratio=4/bf16"),
                         [](const auto& spec) { return "Kind" + std::to_string(spec.index); });

}  // namespace
}  // namespace thinwire::testing
