// What workers find out about the link between them, and what is chosen by it.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

TEST(Link, AllWorkersMeasureTheSame) {
  for (const int count : {2, 5}) {
    Workers workers(Layout::flat(10), count, {});
    in_parallel(count, [&](int rank, Communicator& communicator) {
      Reduction probe = workers.reducer(rank).measure_link();
      run(probe, communicator);
    });
    const Link& first = workers.reducer(0).link();
    EXPECT_TRUE(first.is_known());
    EXPECT_GT(first.round_seconds, 0);
    for (int rank = 1; rank < count; ++rank) {
      EXPECT_EQ(workers.reducer(rank).link().bytes_per_second, first.bytes_per_second);
      EXPECT_EQ(workers.reducer(rank).link().round_seconds, first.round_seconds);
    }
  }
}

TEST(Link, OneWorkerHasNone) {
  Reducer reducer(Layout::flat(10), {});
  Reduction probe = reducer.measure_link();
  EXPECT_EQ(probe.next(), nullptr);
  EXPECT_FALSE(reducer.link().is_known());
}

// A network that takes so long for every collective, and for every byte.
TEST(Link, IsMeasuredAsItIs) {
  constexpr double kRound = 0.004, kRate = 50e6;
  Reducer reducer(Layout::flat(10), {.rank = 0, .world_size = 4});
  Reduction probe = reducer.measure_link();
  while (const Collective* collective = probe.next()) {
    const bool gathers = collective->kind == CollectiveKind::kGather;
    const double bytes = gathers ? 3 * static_cast<double>(collective->data.size()) : 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(kRound + bytes / kRate));
  }
  // Sleeping may take longer, on a busy machine much longer, and never less.
  EXPECT_GE(reducer.link().round_seconds, 0.999 * kRound);
  EXPECT_LE(reducer.link().bytes_per_second, 1.1 * kRate);
  EXPECT_GT(reducer.link().bytes_per_second, 0.01 * kRate);
}

// Where rounds are dear and bytes are not, one round is better; with mostly padding in the shards as well.
TEST(Link, AutoChoosesByIt) {
  const Link slow{.bytes_per_second = 1e6, .round_seconds = 1e-4}, distant{.bytes_per_second = 1e10, .round_seconds = 1e-1};
  for (const auto& [count, chunks, link, scatters] :
       {std::tuple{4, 16, slow, true}, {4, 15, slow, true}, {3, 64, slow, true}, {2, 64, slow, false}, {4, 1, slow, false},
        {4, 16, distant, false}, {3, 64, distant, false}}) {
    const std::size_t elements = static_cast<std::size_t>(chunks) * 32768;
    Workers workers(Layout::flat(elements), count, {.compressor = "casq:reduce=auto", .link = link});
    Gradients gradients = make_gradients("normal", count, elements);
    workers.step(gradients);
    EXPECT_EQ(workers.reducer(0).counters().second_bytes > 0, scatters)
        << count << " workers, " << chunks << " chunks, " << link.bytes_per_second << " bytes a second";
  }
}

TEST(Link, IsAskedForByWhatChoosesByItAlone) {
  EXPECT_FALSE(Reducer(Layout::flat(10), {.compressor = "casq:reduce=scatter"}).chooses_by_link());
  EXPECT_FALSE(Reducer(Layout::flat(10), {.compressor = "none"}).chooses_by_link());
  EXPECT_TRUE(Reducer(Layout::flat(10), {.compressor = "casq:reduce=auto"}).chooses_by_link());
  EXPECT_TRUE(Reducer(Layout::flat(10), {.compressor = "s2:mode=exact/casq:reduce=auto"}).chooses_by_link());
  EXPECT_FALSE(Reducer(Layout::flat(10), {.compressor = "s2:mode=exact/casq:reduce=gather"}).chooses_by_link());
  EXPECT_TRUE(Reducer(Layout::flat(10), {.compressor = "none", .rules = {{"*", "casq:reduce=auto"}}}).chooses_by_link());
}

TEST(Link, WorkersThatKnowDifferentOnesMayNotExchange) {
  const Reducer one(Layout::flat(10), {.link = {1e8, 1e-3}}), other(Layout::flat(10), {.link = {1e9, 1e-3}}), none(Layout::flat(10), {});
  EXPECT_NE(one.fingerprint(), other.fingerprint());
  EXPECT_NE(one.fingerprint(), none.fingerprint());
}

TEST(Link, RefusesWhatIsNoLink) {
  for (const Link& link : {Link{-1, 0}, Link{1e8, -1e-3}, Link{std::numeric_limits<double>::infinity(), 0}, Link{std::nan(""), 0}})
    EXPECT_THROW(Reducer(Layout::flat(10), {.link = link}), ArgumentError);
}

TEST(Link, IsNotMeasuredInABusyLane) {
  Reducer reducer(Layout::flat(10), {.rank = 0, .world_size = 2});
  Reduction probe = reducer.measure_link();
  EXPECT_THROW(reducer.measure_link(), ArgumentError);
  EXPECT_THROW(reducer.measure_link(1), ArgumentError);
}

}  // namespace
}  // namespace thinwire::testing
