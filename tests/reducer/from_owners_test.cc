// All-gather: what every row that serves owners does where all are to get what a parameter's owner has, and nobody else has anything of it.
#include <cmath>

#include <gtest/gtest.h>

#include "reducer/owned_layout.h"
#include "reducer/sample_gradients.h"

namespace thinwire::testing {
namespace {

ReducerOptions options_of(const std::string& spec, int workers) {
  return {.compressor = spec, .seed = 3, .owners = owners_of(workers), .from_owners = true, .measure_every = 2};
}

// What worker `owner` of some has, and zeros in the others' parts.
Gradients given_by_owners(const Workers& workers, const std::vector<float>& values) {
  Gradients given(static_cast<std::size_t>(workers.count()), std::vector<float>(values.size(), 0.0f));
  for_each_owner(workers, [&](std::size_t owner, std::size_t begin, std::size_t end) {
    std::copy(values.begin() + static_cast<std::ptrdiff_t>(begin), values.begin() + static_cast<std::ptrdiff_t>(end),
              given[owner].begin() + static_cast<std::ptrdiff_t>(begin));
  });
  return given;
}

double energy(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

class Giving : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Rows, Giving, ::testing::ValuesIn(specs_that_serve()), name_of_spec);

TEST_P(Giving, AllGetWhatOwnersHave) {
  const ChosenCompressor chosen = make_compressor(GetParam());
  for (const int count : kTriedCounts)
    for (const char* content : {"normal", "sparse", "zero"}) {
      SCOPED_TRACE(std::to_string(count) + " workers, " + content);
      Workers workers(layout_of(count), count, options_of(GetParam(), count));
      const std::vector<float> values = make_gradients(content, 1, workers.layout().elements()).front();
      std::vector<float> missing = values;
      for (int step = 0; step < 6; ++step) {
        Gradients gradients = given_by_owners(workers, missing);
        workers.step(gradients);
        for (const auto& gradient : gradients) ASSERT_EQ(gradient, gradients.front());
        for (std::size_t i = 0; i < missing.size(); ++i) missing[i] -= gradients.front()[i];
        if (chosen.claims.lossless) {
          ASSERT_LE(energy(missing), 1e-12 * energy(values));
        }
      }
      if (chosen.info->contractive) {
        EXPECT_LE(energy(missing), 0.9 * energy(values));
      }
      for (int rank = 0; rank < count; ++rank) {
        EXPECT_EQ(workers.reducer(rank).counters().failed_steps, 0U);
        EXPECT_EQ(energy(workers.residual(rank)), 0.0);
      }
    }
}

TEST_P(Giving, TheErrorIsTheOwners) {
  constexpr int kWorkers = 3;
  Workers workers(layout_of(kWorkers), kWorkers, options_of(GetParam(), kWorkers));
  const std::vector<float> values = make_gradients("laplace", 1, workers.layout().elements()).front();
  Gradients gradients = given_by_owners(workers, values);
  workers.step(gradients);
  double lost = 0, measured = 0, error = 0;
  for (std::size_t i = 0; i < values.size(); ++i) lost += std::pow(static_cast<double>(values[i] - gradients.front()[i]), 2);
  for (int rank = 0; rank < kWorkers; ++rank) {
    const Counters counters = workers.reducer(rank).counters();
    measured += counters.measured_energy;
    error += counters.error_energy;
      }
  EXPECT_NEAR(measured, energy(values), 1e-4 * energy(values));
  EXPECT_NEAR(error, lost, 1e-3 * energy(values));
}

TEST_P(Giving, ANanOfAnyWorkerFailsTheStepOfAll) {
  constexpr int kWorkers = 3;
  Workers workers(layout_of(kWorkers), kWorkers, options_of(GetParam(), kWorkers));
  std::vector<float> values = make_gradients("normal", 1, workers.layout().elements()).front();
  values[values.size() / 2] = std::nanf("");
  Gradients gradients = given_by_owners(workers, values);
  workers.step(gradients);
  for (int rank = 0; rank < kWorkers; ++rank) {
    EXPECT_EQ(workers.reducer(rank).counters().failed_steps, 1U);
    EXPECT_TRUE(std::isnan(gradients[static_cast<std::size_t>(rank)].back()));
  }
}

TEST(GivingFloats, BytesAreThoseOfAnAllGather) {
  constexpr int kWorkers = 4;
  Workers workers(layout_of(kWorkers), kWorkers, options_of("none", kWorkers));
  Gradients gradients = given_by_owners(workers, make_gradients("normal", 1, workers.layout().elements()).front());
  workers.step(gradients);
  const Counters counters = workers.reducer(0).counters();
  EXPECT_EQ(counters.rounds, 1U);
  EXPECT_NEAR(counters.traffic_bytes, 0.75 * 4 * static_cast<double>(workers.layout().elements()), 3 * 64);
}

// Changes a byte of what worker 1 has sent.
class SpoilingCommunicator : public Communicator {
 public:
  explicit SpoilingCommunicator(Communicator& real) : real_(real) {}
  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  void abandon() noexcept override { real_.abandon(); }
  void perform(const Collective& collective) override {
    real_.perform(collective);
    if (!collective.result.empty()) collective.result[collective.result.size() / 2 + 20] ^= std::byte{4};
  }

 private:
  Communicator& real_;
};

TEST_P(Giving, ForeignBytesAreRefused) {
  constexpr int kWorkers = 2;
  Workers workers(layout_of(kWorkers), kWorkers, options_of(GetParam(), kWorkers));
  const Gradients given = given_by_owners(workers, make_gradients("normal", 1, workers.layout().elements()).front());
  Gradients gradients = given;
  in_parallel(kWorkers, [&](int rank, Communicator& communicator) {
    Reduction reduction = workers.reducer(rank).reduce(parameters_of(workers.layout(), gradients[static_cast<std::size_t>(rank)]));
    SpoilingCommunicator spoilt(communicator);
    if (rank == 1) return run(reduction, communicator);
    EXPECT_THROW(run(reduction, spoilt), PayloadError);
    EXPECT_EQ(gradients[0], given[0]);
  });
}

TEST(GivingFloats, WhatCannotBeIsRefused) {
  const Layout layout = layout_of(2);
  EXPECT_THROW(Reducer(layout, {.world_size = 2, .from_owners = true}), ArgumentError);
  EXPECT_THROW(Reducer(layout, {.compressor = "powersgd:rank=1", .world_size = 2, .owners = owners_of(2), .from_owners = true}), ArgumentError);
}

}  // namespace
}  // namespace thinwire::testing
