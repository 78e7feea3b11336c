// What is particular to scatter_reduce; the conformance suite proves the rest for every row that offers it.
#include <cmath>

#include <gtest/gtest.h>

#include "reducer/reseal.h"
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

// Flips the bits of one byte of what worker 1 sends, in the collectives of one kind, and with `reseals` makes its checksum right.
class SpoilingCommunicator : public Communicator {
 public:
  SpoilingCommunicator(Communicator& real, CollectiveKind kind, std::size_t position, bool reseals)
      : real_(real), kind_(kind), position_(position), reseals_(reseals) {}
  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  void abandon() noexcept override { real_.abandon(); }
  void perform(const Collective& collective) override {
    real_.perform(collective);
    if (collective.kind != kind_) return;
    const auto foreign = collective.result.last(collective.result.size() / 2);
    if (position_ >= foreign.size()) return;
    const auto flip = [this](std::span<std::byte> message) { message[position_] ^= std::byte{0xff}; };
    if (reseals_)
      spoil_and_reseal(foreign, 1, flip);
    else
      flip(foreign);
  }

 private:
  Communicator& real_;
  CollectiveKind kind_;
  std::size_t position_;
  bool reseals_;
};

class SpoiltShards : public ::testing::TestWithParam<CollectiveKind> {
 protected:
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);
  static constexpr std::size_t kShardBytes = 12 + 1 + 2 * 16 + 300 + 50;  // of a and c, with two bits an entry

  SpoiltShards() : first_(layout_, 2, options_) {
    Gradients warm_up = inputs_;
    first_.step(warm_up);
  }

  // Whether worker 0 refuses a message with one byte changed, which leaves its residual as it was; else its mean is finite.
  bool refuses(std::size_t position, bool reseals) {
    Workers workers(layout_, 2, options_);
    for (int rank = 0; rank < 2; ++rank) workers.reducer(rank).load_state(first_.reducer(rank).state());
    Gradients gradients = inputs_;
    try {
      in_parallel(2, [&](int rank, Communicator& communicator) {
        SpoilingCommunicator spoiling(communicator, GetParam(), rank == 0 ? position : kNowhere, reseals);
        Reduction reduction = workers.reducer(rank).reduce(parameters_of(layout_, gradients[static_cast<std::size_t>(rank)]));
        run(reduction, spoiling);
      });
    } catch (const PayloadError&) {
      EXPECT_EQ(workers.residual(0), first_.residual(0)) << position;
      return true;
    }
    const bool flagged = workers.reducer(0).counters().non_finite > 0;
    for (const float value : gradients[0]) EXPECT_TRUE(flagged || std::isfinite(value)) << position;
    for (const float value : workers.residual(0)) EXPECT_TRUE(std::isfinite(value)) << position;
    return false;
  }

  // Worker 0 owns a and c and worker 1 owns b, whose shard is padded to the longest.
  const Layout layout_{{{"a", {40, 30}}, {"b", {70}}, {"c", {200}}}};
  const ReducerOptions options_{.compressor = "casq:reduce=scatter", .world_size = 2};
  const Gradients inputs_ = make_gradients("laplace", 2, layout_.elements());
  Workers first_;
};

TEST_P(SpoiltShards, AreRefused) {
  for (std::size_t position = 0; position < kShardBytes; ++position) EXPECT_TRUE(refuses(position, false)) << position;
}

TEST_P(SpoiltShards, SealedAgainAreRefusedOrDecodedToSomethingFinite) {
  std::size_t refused = 0;
  for (std::size_t position = 0; position < kShardBytes; ++position) refused += refuses(position, true) ? 1 : 0;
  EXPECT_GE(refused, kSealedHeader);
  EXPECT_LT(refused, kShardBytes / 2);  // codes, and zeros behind the shorter shard, are never refused
}

INSTANTIATE_TEST_SUITE_P(Rounds, SpoiltShards, ::testing::Values(CollectiveKind::kScatter, CollectiveKind::kGather));

}  // namespace
}  // namespace thinwire::testing
