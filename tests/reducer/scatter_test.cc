// What is particular to scatter_reduce; the conformance suite proves the rest for every row that offers it.
#include <cmath>

#include <gtest/gtest.h>

#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

TEST(Scatter, TrafficOfAWorkerDoesNotGrowWithTheirNumber) {
  constexpr std::size_t kElements = 16 * 32768;
  for (const int count : {2, 4, 8}) {
    SCOPED_TRACE(count);
    Workers gather(Layout::flat(kElements), count, {.compressor = "casq:bits=2,reduce=gather"});
    Workers scatter(Layout::flat(kElements), count, {.compressor = "casq:bits=2,reduce=scatter"});
    for (Workers* workers : {&gather, &scatter}) {
      Gradients gradients = make_gradients("normal", count, kElements);
      workers->step(gradients);
    }
    const Counters one_message = gather.reducer(0).counters(), counters = scatter.reducer(0).counters();
    const double share = static_cast<double>(count - 1) / count;
    const double setup = 2 * share * static_cast<double>(counters.setup_bytes);
    const double formula = 2 * share * static_cast<double>(one_message.payload_bytes);
    EXPECT_NEAR(counters.traffic_bytes - setup, formula, 0.002 * formula);
    EXPECT_EQ(counters.rounds, one_message.rounds + 1);
  }
}

TEST(Scatter, ResultsDoNotDependOnBuckets) {
  const Layout layout({{"a", {300, 200}}, {"b", {90000}}, {"c", {7}}, {"d", {40000}}});
  Gradients expected;
  for (const std::vector<std::size_t>& buckets : {std::vector<std::size_t>{0}, {0, 1, 2, 3}, {0, 2}}) {
    Workers workers(layout, 3, {.compressor = "casq:bits=2,reduce=scatter"});
    Gradients gradients;
    for (unsigned step = 0; step < 3; ++step) {
      gradients = make_gradients("laplace", 3, layout.elements(), step);
      workers.step(gradients, buckets);
    }
    if (expected.empty()) expected = gradients;
    EXPECT_EQ(gradients, expected);
  }
}

// With enough chunks for four workers auto scatters; with fewer of either it gathers.
TEST(Scatter, AutoChoosesByWorkersAndLength) {
  for (const auto& [count, chunks, scatters] : {std::tuple{4, 16, true}, {4, 15, false}, {3, 64, false}, {2, 64, false}}) {
    const std::size_t elements = static_cast<std::size_t>(chunks) * 32768;
    Workers workers(Layout::flat(elements), count, {.compressor = "casq:reduce=auto"});
    Gradients gradients = make_gradients("normal", count, elements);
    workers.step(gradients);
    EXPECT_EQ(workers.reducer(0).counters().second_bytes > 0, scatters) << count << " workers, " << chunks << " chunks";
  }
}

// Over steps with feedback nothing is lost of what the second encoding leaves out.
TEST(Scatter, TheMeanOfManyStepsIsExact) {
  constexpr std::size_t kElements = 200000, kSteps = 40;
  constexpr int kWorkers = 4;
  Workers workers(Layout::flat(kElements), kWorkers, {.compressor = "casq:bits=1,reduce=scatter"});
  const Gradients inputs = make_gradients("normal", kWorkers, kElements);
  std::vector<double> sum(kElements);
  for (std::size_t step = 0; step < kSteps; ++step) {
    Gradients means = inputs;
    workers.step(means);
    for (std::size_t i = 0; i < kElements; ++i) sum[i] += static_cast<double>(means[0][i]);
  }
  double error = 0, energy = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    double exact = 0;
    for (const auto& input : inputs) exact += static_cast<double>(input[i]) / kWorkers;
    error += std::pow(sum[i] / kSteps - exact, 2);
    energy += exact * exact;
  }
  EXPECT_LT(error / energy, 0.05);
}

// Flips the bits of one byte of what worker 1 sends, in the collectives of one kind.
class SpoilingCommunicator : public Communicator {
 public:
  SpoilingCommunicator(Communicator& real, CollectiveKind kind, std::size_t position)
      : real_(real), kind_(kind), position_(position) {}
  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  void abandon() noexcept override { real_.abandon(); }
  void perform(const Collective& collective) override {
    real_.perform(collective);
    if (collective.kind != kind_) return;
    const auto foreign = collective.result.last(collective.result.size() / 2);
    if (position_ < foreign.size()) foreign[position_] ^= std::byte{0xff};
  }

 private:
  Communicator& real_;
  CollectiveKind kind_;
  std::size_t position_;
};

TEST(Scatter, SpoiltBytesAreRefusedOrDecodedToSomethingFinite) {
  const Layout layout({{"a", {40, 30}}, {"b", {70}}, {"c", {200}}});
  ReducerOptions options{.compressor = "casq:reduce=scatter", .world_size = 2};
  Workers first(layout, 2, options);
  const Gradients inputs = make_gradients("laplace", 2, layout.elements());
  Gradients warm_up = inputs;
  first.step(warm_up);
  int refused = 0;
  for (const CollectiveKind kind : {CollectiveKind::kScatter, CollectiveKind::kGather})
    for (std::size_t position = 0; position < 360; position += position < 64 ? 1 : 13) {
      Workers workers(layout, 2, options);
      for (int rank = 0; rank < 2; ++rank) workers.reducer(rank).load_state(first.reducer(rank).state());
      Gradients gradients = inputs;
      try {
        in_parallel(2, [&](int rank, Communicator& communicator) {
          SpoilingCommunicator spoiling(communicator, kind, rank == 0 ? position : static_cast<std::size_t>(-1));
          Reduction reduction = workers.reducer(rank).reduce(parameters_of(layout, gradients[static_cast<std::size_t>(rank)]));
          run(reduction, spoiling);
        });
        const bool flagged = workers.reducer(0).counters().non_finite > 0;
        for (const float value : gradients[0]) ASSERT_TRUE(flagged || std::isfinite(value)) << position;
        for (const float value : workers.residual(0)) ASSERT_TRUE(std::isfinite(value)) << position;
      } catch (const PayloadError&) {
        ++refused;
        EXPECT_EQ(workers.residual(0), first.residual(0)) << position;
      }
    }
  EXPECT_GE(refused, 14);  // both headers' bytes at least
}

}  // namespace
}  // namespace thinwire::testing
