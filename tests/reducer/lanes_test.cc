// Reductions of several lanes in flight at once, each with a communicator of its own; for the thread sanitizer too.
#include <gtest/gtest.h>

#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

TEST(Lanes, RunAtOnceWithTheResultOfOne) {
  constexpr int kWorkers = 3, kLanes = 3;
  const Layout layout({{"a", {200, 100}}, {"b", {90, 100}}, {"c", {40, 50}}});
  Workers one_lane(layout, kWorkers, {.compressor = "casq:bits=2,retrain=2"});
  std::vector<std::vector<std::unique_ptr<Communicator>>> groups;
  for (int lane = 0; lane < kLanes; ++lane) groups.push_back(make_local_communicators(kWorkers, std::chrono::seconds(60)));
  std::vector<std::unique_ptr<Reducer>> reducers;
  for (int rank = 0; rank < kWorkers; ++rank)
    reducers.push_back(std::make_unique<Reducer>(
        layout, ReducerOptions{.compressor = "casq:bits=2,retrain=2", .rank = rank, .world_size = kWorkers, .lanes = kLanes}));

  for (unsigned step = 0; step < 5; ++step) {
    Gradients gradients = make_gradients("normal", kWorkers, layout.elements(), step), expected = gradients;
    one_lane.step(expected, {0, 1, 2});
    on_threads(kWorkers * kLanes, [&](int thread) {
      const int lane = thread % kLanes;
      const auto r = static_cast<std::size_t>(thread / kLanes), l = static_cast<std::size_t>(lane);
      const auto parameters = parameters_of(layout, gradients[r], l, l + 1);
      Reduction reduction = reducers[r]->reduce(parameters, lane);
      run(reduction, *groups[l][r]);
    });
    ASSERT_EQ(gradients, expected) << "at step " << step;
  }
}

}  // namespace
}  // namespace thinwire::testing
