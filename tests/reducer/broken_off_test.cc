// Reductions that end early: at whichever collective it happens, residuals are as if the step had not been, and the next one works.
#include <gtest/gtest.h>

#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

const Layout& layout() {
  static const Layout instance({{"a", {300, 150}}, {"b", {64}}, {"c", {70, 10}}});
  return instance;
}

ReducerOptions options(int rank) {
  return {.compressor = "casq:bits=2,retrain=1", .rules = {{"b", "none"}, {"c", "bf16:feedback=on"}}, .rank = rank, .world_size = 2};
}

constexpr int kCollectives = 3;  // clusters' training, casq's gather with what none sums, bf16's sum
constexpr int kNever = -1;

// One step of a worker, which throws in place of its collective number `broken_off`.
void step(Reducer& reducer, std::vector<float> gradient, Communicator& communicator, int broken_off) {
  Reduction reduction = reducer.reduce(parameters_of(layout(), gradient));
  int collectives = 0;
  while (const Collective* collective = reduction.next()) {
    if (collectives++ == broken_off) throw Error("broken off");
    communicator.perform(*collective);
  }
  EXPECT_EQ(collectives, kCollectives);
}

TEST(BrokenOff, AtEveryCollectiveResidualsAreWhole) {
  for (int broken_off = 0; broken_off < kCollectives; ++broken_off) {
    SCOPED_TRACE(broken_off);
    std::vector<std::unique_ptr<Reducer>> reducers;
    for (int rank = 0; rank < 2; ++rank) reducers.push_back(std::make_unique<Reducer>(layout(), options(rank)));
    const auto run_step = [&](unsigned number, int where) {
      const Gradients gradients = make_gradients("laplace", 2, layout().elements(), number);
      in_parallel(2, [&](int rank, Communicator& communicator) {
        const auto index = static_cast<std::size_t>(rank);
        step(*reducers[index], gradients[index], communicator, rank == 0 ? where : kNever);
      });
    };
    run_step(1, kNever);
    const auto before = reducers[0]->state();
    EXPECT_THROW(run_step(2, broken_off), Error);
    const auto after = reducers[0]->state();
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_EQ(after[i].steps, before[i].steps);
      EXPECT_EQ(after[i].memory, before[i].memory);
      EXPECT_EQ(after[i].residual, before[i].residual);
    }
    run_step(3, kNever);
  }
}

TEST(BrokenOff, NextThrowsAgainAfterItHasThrown) {
  Reducer reducer(Layout::flat(100), {.compressor = "casq:bits=2", .world_size = 2});
  std::vector<float> gradient(100, 1.0f);
  Reduction reduction = reducer.reduce(parameters_of(reducer.layout(), gradient));
  const Collective* collective = reduction.next();
  while (collective && collective->kind != CollectiveKind::kGather) collective = reduction.next();
  ASSERT_NE(collective, nullptr);
  std::fill(collective->result.begin(), collective->result.end(), std::byte{0xff});
  EXPECT_THROW(reduction.next(), PayloadError);
  EXPECT_THROW(reduction.next(), Error);
  EXPECT_NO_THROW(reducer.reduce(parameters_of(reducer.layout(), gradient)));  // the lane is free again
}

}  // namespace
}  // namespace thinwire::testing
