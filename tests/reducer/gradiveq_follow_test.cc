// GradiVeQ without learning phases (refresh=every).
#include <cmath>

#include <gtest/gtest.h>

#include "reducer/gradiveq_samples.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"
#include "sanitized.h"

namespace thinwire::testing {
namespace {

std::string spec_of(const Cut& cut, const std::string& more) {
  return "gradiveq:refresh=every,smallest=0,axis=" + cut.axis + ",slice=" + std::to_string(cut.slice) + "," + more;
}

class GradiveqFollow : public ::testing::TestWithParam<Cut> {};

// Rank 2 and a mean make 3 dimensions, twice that where slices are short, and again while old ones are remembered; once they are found next to nothing is lost. The first step is
// uncompressed; then a coefficient for each component and probe of each slice, and the probe's row.
TEST_P(GradiveqFollow, FindsTheSpaceThatSlicesLieInAndFollowsItsChange) {
  const Cut& cut = GetParam();
  const auto slices = slices_by_definition(cut.shape, cut.axis, cut.entries);
  for (const int count : kSanitized ? std::vector{1, 3} : std::vector{1, 2, 3, 5, 16}) {
    if (count > 2 && cut.entries == 900) continue;  // the same, but slow
    Workers workers(layout_of(cut), count, {.compressor = spec_of(cut, "dims=12")});
    Structured before(slices, 2, 0.0f, 3), after(slices, 2, 0.0f, 4);
    double lost_by_change = 0;
    for (int step = 0; step < 60; ++step) {
      Gradients means = (step < 4 ? before : after).draw(count);
      const std::vector<float> exact = mean_of(means);
      const std::uint64_t sent = workers.reducer(0).counters().payload_bytes;
      workers.step(means);
      expect_alike(means);
      const double error = relative_error(means[0], exact);
      if (step == 4) lost_by_change = error;
      if (step < 4 || step >= 55) { EXPECT_LT(error, 1e-4) << "step " << step << ", " << count << " workers"; }
      EXPECT_EQ(workers.reducer(0).counters().payload_bytes - sent, 4 * (step == 0 ? exact.size() : 13 * slices.size() + cut.entries));
      if (HasFailure()) return;
    }
    EXPECT_GT(lost_by_change, 0.1);
  }
}

TEST_P(GradiveqFollow, IsLinear) {
  const Cut& cut = GetParam();
  for (const int count : {2, 3, 5, 16}) {
    if (count > 2 && cut.entries == 900) continue;
    expect_linear(cut, spec_of(cut, "dims=3"), count, 6);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryAxis, GradiveqFollow, ::testing::ValuesIn(cuts()), name_of_cut);

// With feedback every direction gets through: over many steps with one gradient of full rank the mean of what was decoded
// nears it, as what is left stays bounded. Without, what components and probe miss never does.
TEST(GradiveqFollowFeedback, NoDirectionIsOutOfReach) {
  double error[2], left[2];
  const Gradients inputs = make_gradients("normal", 3, kConv.elements());
  for (const bool feedback : {false, true}) {
    Workers workers(kConv, 3, {.compressor = std::string("gradiveq:refresh=every,smallest=0,ratio=4,feedback=") + (feedback ? "on" : "off")});
    constexpr int kSteps = 200;
    std::vector<float> sum(kConv.elements());
    for (int step = 0; step <= kSteps; ++step) {
      Gradients means = inputs;
      workers.step(means);
      if (step == 0) continue;
      for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += means[0][e] / kSteps;
      if (step == kSteps / 2 || step == kSteps) {
        double energy = 0;
        for (const float value : workers.residual(0)) energy += static_cast<double>(value) * static_cast<double>(value);
        left[step == kSteps] = energy;
      }
    }
    error[feedback] = relative_error(sum, mean_of(inputs));
  }
  EXPECT_LT(error[true], 0.2 * error[false]);
  EXPECT_LT(left[1], 3 * left[0]) << "twice the steps would make four times as much of what never gets through";
}

TEST(GradiveqFollowRange, LargeAndSmallGradientsAreFollowed) {
  for (const float scale : {1e30f, 1e-30f}) {
    Workers workers(kConv, 2, {.compressor = "gradiveq:refresh=every,dims=3,smallest=0"});
    Structured gradients(slices_by_definition({64, 16, 3, 3}, "filter", 144), 2, 0.0f);
    for (int step = 0; step < 6; ++step) {
      Gradients means = gradients.draw(2);
      for (auto& gradient : means)
        for (float& value : gradient) value *= scale;
      const std::vector<float> exact = mean_of(means);
      workers.step(means);
      EXPECT_LT(relative_error(means[0], exact), 1e-9) << scale << " in step " << step;
    }
  }
}

TEST(GradiveqFollowRange, AGradientThatIsNotFiniteIsNotFollowed) {
  Workers workers(kConv, 2, {.compressor = "gradiveq:refresh=every,dims=3,smallest=0"});
  Structured gradients(slices_by_definition({64, 16, 3, 3}, "filter", 144), 2, 0.0f);
  for (int step = 0; step < 6; ++step) {
    Gradients means = gradients.draw(2);
    if (step == 2) means[1][77] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> exact = mean_of(means);
    workers.step(means);
    if (step != 2) { EXPECT_LT(relative_error(means[0], exact), 1e-9) << step; }
    if (step == 2) { EXPECT_TRUE(std::isnan(means[0][77])); }
  }
}

TEST(GradiveqFollowSpec, WhatCannotBeIsRefused) {
  for (const char* spec : {"gradiveq:refresh=every,rate=1", "gradiveq:refresh=every,energy=0.5", "gradiveq:refresh=every/bf16"})
    EXPECT_THROW(canonical_spec(spec), ArgumentError) << spec;
  EXPECT_NO_THROW(canonical_spec("gradiveq:refresh=every,ratio=8"));
}

TEST(GradiveqFollowSpec, WhatSavesNothingTravelsUncompressed) {
  for (const char* spec : {"gradiveq:refresh=every,dims=144,smallest=0", "gradiveq:refresh=every,dims=141,smallest=0",
                           "gradiveq:refresh=every,dims=2,smallest=1000000"}) {
    Workers workers(kConv, 2, {.compressor = spec});
    for (unsigned step = 0; step < 2; ++step) {
      Gradients means = make_gradients("normal", 2, kConv.elements(), step);
      const std::vector<float> exact = mean_of(means);
      workers.step(means);
      EXPECT_LT(relative_error(means[0], exact), 1e-12) << spec;
    }
  }
}

}  // namespace
}  // namespace thinwire::testing
