// CASQ contracts whatever its thresholds were trained on, and what is measured stays good after a step that is not finite.
#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "core/work.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

double energy_of(const std::vector<float>& values) {
  double energy = 0;
  for (const float value : values) energy += static_cast<double>(value) * static_cast<double>(value);
  return energy;
}

constexpr std::size_t kChunk = kChunkElements;

std::vector<float> alternating(std::size_t elements) {
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) values[i] = i % 2 == 0 ? 1.0f : -1.0f;
  return values;
}

// Alternating signs, and one value of the first chunk that is a million times larger: the clusters' only threshold goes
// between it and all others.
std::vector<float> spiked(std::size_t elements) {
  std::vector<float> values = alternating(elements);
  values[5] = 1e6f;
  return values;
}

class Contraction : public ::testing::TestWithParam<std::string> {
 protected:
  ReducerOptions options() const { return {.compressor = GetParam()}; }
};

TEST_P(Contraction, OneWorkersOutlierDoesNotSilenceAnother) {
  Workers workers(Layout::flat(kChunk), 2, options());
  for (int step = 0; step < 3; ++step) {
    Gradients gradients{spiked(kChunk), alternating(kChunk)};
    std::vector<float> values = workers.residual(1);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += gradients[1][i];
    workers.step(gradients);
    EXPECT_LT(energy_of(workers.residual(1)), 0.9 * energy_of(values)) << "in step " << step;
  }
}

TEST_P(Contraction, OneChunksOutlierDoesNotSilenceAnother) {
  Workers workers(Layout::flat(3 * kChunk), 1, options());
  Gradients gradients{spiked(3 * kChunk)};
  workers.step(gradients);
  std::vector<float> residual = workers.residual(0);
  residual.erase(residual.begin(), residual.begin() + static_cast<std::ptrdiff_t>(kChunk));
  EXPECT_LT(energy_of(residual), 0.9 * 2 * kChunk);
}

TEST_P(Contraction, ThresholdsOfAnEarlierOutlierDoNotSilenceTheNextSteps) {
  Workers workers(Layout::flat(kChunk), 1, options());
  Gradients gradients{spiked(kChunk)};
  workers.step(gradients);
  for (int step = 0; step < 5; ++step) {
    gradients = {alternating(kChunk)};
    workers.step(gradients);
  }
  EXPECT_LT(energy_of(workers.residual(0)), 2.0 * kChunk);  // five steps unsent would be 25
}

INSTANTIATE_TEST_SUITE_P(Casq, Contraction,
                         ::testing::Values("casq:bits=1", "casq:bits=2", "casq:bits=1,signs=apart", "casq:bits=4"),
                         [](const auto& spec) {
                           std::string name = spec.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

class Measured : public ::testing::TestWithParam<std::string> {};

TEST_P(Measured, AStepThatIsNotFiniteLeavesTheMeasuredErrorAlone) {
  ReducerOptions options{.compressor = GetParam()};
  options.measure_every = 1;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e38f}) {
    Workers workers(Layout::flat(1000), 1, options);
    Gradients gradients{alternating(1000)};
    gradients[0][17] = bad;
    workers.step(gradients);
    gradients = {alternating(1000)};
    workers.step(gradients);
    const Counters counters = workers.reducer(0).counters();
    EXPECT_TRUE(std::isfinite(counters.measured_energy)) << bad;
    EXPECT_TRUE(std::isfinite(counters.error_energy)) << bad;
    EXPECT_GE(counters.measured_energy, 999) << bad;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryKind, Measured, ::testing::Values("none", "bf16", "casq"));

TEST(LossScale, BeyondWhatFloatsHoldIsRefused) {
  Reducer reducer(Layout::flat(1), {.compressor = "casq"});
  std::vector<float> gradient(1);
  for (const double scale : {0.0, -1.0, 1e-300, 1e-39, 1e39, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_THROW(reducer.reduce(parameters_of(reducer.layout(), gradient), 0, scale), ArgumentError) << scale;
}

}  // namespace
}  // namespace thinwire::testing
