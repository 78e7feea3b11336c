#include "thinwire/trial.h"

#include <cmath>

#include <gtest/gtest.h>

#include "reducer/sample_gradients.h"

namespace thinwire::testing {
namespace {

std::vector<float> flat(const Gradients& gradients) {
  std::vector<float> all;
  for (const auto& gradient : gradients) all.insert(all.end(), gradient.begin(), gradient.end());
  return all;
}

TEST(Trial, FiguresAreWhatTheyAreCalled) {
  constexpr std::size_t kElements = 5000;
  std::vector<float> gradients = flat(make_gradients("laplace", 3, kElements, 1));
  const std::vector<float> second = flat(make_gradients("laplace", 3, kElements, 2));
  gradients.insert(gradients.end(), second.begin(), second.end());
  const TrialReport report = run_trial(Layout::flat(kElements), gradients, 3, 2, {.compressor = "casq:bits=2,feedback=off"});

  EXPECT_EQ(report.workers, 3);
  EXPECT_EQ(report.elements, kElements);
  EXPECT_EQ(report.steps, 2u);
  ASSERT_EQ(report.per_step.size(), 2u);
  EXPECT_EQ(report.per_step[0].rounds, 2);
  EXPECT_EQ(report.per_step[1].rounds, 1);
  EXPECT_EQ(report.per_step[0].setup_bytes, 3584);
  EXPECT_EQ(report.total.payload_bytes, 12 + 1 + 16 + 1250);
  EXPECT_DOUBLE_EQ(*report.total.bits_per_element, 8 * report.total.payload_bytes / kElements);
  EXPECT_DOUBLE_EQ(report.per_step[1].traffic_bytes, 2 * report.total.payload_bytes);  // to each of two others

  for (std::size_t step = 0; step < 2; ++step) {
    double error = 0, energy = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      double exact = 0;
      for (std::size_t w = 0; w < 3; ++w) exact += static_cast<double>(gradients[(step * 3 + w) * kElements + i]) / 3;
      error += std::pow(static_cast<double>(report.mean[step * kElements + i]) - exact, 2);
      energy += exact * exact;
    }
    EXPECT_NEAR(*report.per_step[step].nmse_mean, error / energy, 1e-9);
    EXPECT_NEAR(*report.per_step[step].nmse_worker, 0.176, 0.02);
  }
}

TEST(Trial, UndefinedFiguresAreMissing) {
  const TrialReport zeros = run_trial(Layout::flat(10), std::vector<float>(20), 2, 1, {.compressor = "casq"});
  EXPECT_FALSE(zeros.total.nmse_mean.has_value());
  EXPECT_FALSE(zeros.total.nmse_worker.has_value());
  const TrialReport empty = run_trial(Layout::flat(0), {}, 2, 1, {.compressor = "casq"});
  EXPECT_FALSE(empty.total.bits_per_element.has_value());
  std::vector<float> bad(20, 1.0f);
  bad[3] = std::nanf("");
  EXPECT_FALSE(run_trial(Layout::flat(10), bad, 2, 1, {.compressor = "casq"}).total.nmse_mean.has_value());
}

TEST(Trial, RefusesInputOfAnotherSize) {
  EXPECT_THROW(run_trial(Layout::flat(10), std::vector<float>(19), 2, 1, {}), ArgumentError);
  EXPECT_THROW(run_trial(Layout::flat(10), {}, 0, 1, {}), ArgumentError);
  EXPECT_THROW(run_trial(Layout::flat(10), std::vector<float>(20), 2, 1, {.compressor = "nothing"}), ArgumentError);
}

}  // namespace
}  // namespace thinwire::testing
