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

// Rank 2 and a mean make 3 dimensions, twice that where slices are short, and again while old ones are remembered; once they are
// found next to nothing is lost. The first step is uncompressed; then a coefficient for each component and probe of each slice, and
// the probes' rows.
TEST_P(GradiveqFollow, FindsTheSpaceThatSlicesLieInAndFollowsItsChange) {
  const Cut& cut = GetParam();
  const auto slices = slices_by_definition(cut.shape, cut.axis, cut.entries);
  for (const int count : kSanitized ? std::vector{1, 3} : std::vector{1, 2, 3, 5, 16}) {
    if (count > 2 && cut.entries == 900) continue;  // the same, but slow
    Workers workers(layout_of(cut), count, {.compressor = spec_of(cut, "dims=12,probes=1")});
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

TEST_P(GradiveqFollow, SeveralProbesFindWhatChangesAtOnce) {
  const Cut& cut = GetParam();
  const auto slices = slices_by_definition(cut.shape, cut.axis, cut.entries);
  if (cut.entries == 900) return;  // the same, but slow
  Workers workers(layout_of(cut), 3, {.compressor = spec_of(cut, "dims=1,probes=6")});
  Structured before(slices, 2, 0.0f, 3), after(slices, 2, 0.0f, 4);
  for (int step = 0; step < 12; ++step) {
    Gradients means = (step < 6 ? before : after).draw(3);
    const std::vector<float> exact = mean_of(means);
    const std::uint64_t sent = workers.reducer(0).counters().payload_bytes;
    workers.step(means);
    expect_alike(means);
    EXPECT_LT(relative_error(means[0], exact), 1e-6) << "step " << step;  // 6 dimensions at most, of which probes have any
    EXPECT_EQ(workers.reducer(0).counters().payload_bytes - sent, 4 * (step == 0 ? exact.size() : 7 * slices.size() + 6 * cut.entries));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryAxis, GradiveqFollow, ::testing::ValuesIn(cuts()), name_of_cut);

// As many probes as ratio allows, and components for what they leave: numbers sent come to the ratio's, but for one component's.
TEST(GradiveqFollowSize, NumbersAreAsManyAsRatioSays) {
  using Shape = std::vector<std::int64_t>;
  for (const Shape& shape :
       {Shape{64, 64, 3, 3}, {256, 128, 3, 3}, {128, 256, 1, 1}, {300, 200}, {64, 32, 5, 5}, {64, 32, 3, 3, 3}, {96, 64, 7}}) {
    const Layout layout({{"weight", shape}});
    for (const double ratio : {4.0, 8.0, 12.0}) {
      Workers workers(layout, 2, {.compressor = "gradiveq:refresh=every,ratio=" + std::to_string(ratio)});
      std::uint64_t sent = 0;
      for (unsigned step = 0; step < 2; ++step) {
        sent = workers.reducer(0).counters().payload_bytes;
        Gradients gradients = make_gradients("normal", 2, layout.elements(), step);
        workers.step(gradients);
      }
      const double numbers = static_cast<double>(workers.reducer(0).counters().payload_bytes - sent) / 4;
      const double allowed = static_cast<double>(layout.elements()) / ratio;
      EXPECT_LE(numbers, allowed) << ratio << " of " << shape.size() << " dimensions";
      EXPECT_GT(numbers, 0.6 * allowed);
    }
  }
}

// --- stages

const std::vector<std::string>& stages() {
  static const std::vector<std::string> all = {"none", "bf16", "fp16", "qsgd:bits=8,reduce=sum", "qsgd:bits=4,reduce=sum",
                                               "qsgd:bits=4,reduce=gather", "qsgd:bits=4,reduce=scatter"};
  return all;
}

TEST(GradiveqFollowStage, NearsWhatFloatsDecodeToAsItGetsFiner) {
  double error[2];
  for (const bool fine : {false, true}) {
    const std::string spec = "gradiveq:refresh=every,ratio=4,smallest=0";
    Workers plain(kConv, 3, {.compressor = spec}), through_none(kConv, 3, {.compressor = spec + "/none"});
    Workers staged(kConv, 3, {.compressor = spec + (fine ? "/qsgd:bits=8,reduce=sum" : "/qsgd:bits=4,reduce=sum")});
    Structured gradients(slices_by_definition({64, 16, 3, 3}, "filter", 144), 8, 0.1f);
    error[fine] = 0;
    for (int step = 0; step < 4; ++step) {
      Gradients one = gradients.draw(3), other = one, third = one;
      plain.step(one);
      staged.step(other);
      through_none.step(third);
      expect_alike(other);
      EXPECT_LT(relative_error(third[0], one[0]), 1e-9) << step;
      if (step == 1) error[fine] = relative_error(other[0], one[0]);  // before the bases part
    }
    EXPECT_LT(staged.reducer(0).counters().payload_bytes, plain.reducer(0).counters().payload_bytes);
  }
  EXPECT_LT(error[1], 1e-3);
  EXPECT_LT(error[1], 0.1 * error[0]);
}

// Nothing is lost: what went in over all steps is what came out and what is left, whatever the stage rounds; but for what sums of
// halves round on their way.
TEST(GradiveqFollowStage, WithFeedbackNothingIsLost) {
  for (const std::string& stage : stages()) {
    SCOPED_TRACE(stage);
    constexpr int kWorkers = 3, kSteps = 8;
    const Layout layout({{"conv.weight", {24, 20, 3, 3}}, {"bias", {24}}, {"fc.weight", {40, 30}}});
    Workers workers(layout, kWorkers, {.compressor = "gradiveq:refresh=every,ratio=6,smallest=100,feedback=on/" + stage});
    std::vector<double> difference(layout.elements());
    double energy = 0;
    for (int step = 0; step < kSteps; ++step) {
      Gradients means = make_gradients("normal", kWorkers, layout.elements(), static_cast<unsigned>(step));
      for (const auto& gradient : means)
        for (std::size_t e = 0; e < difference.size(); ++e) difference[e] += static_cast<double>(gradient[e]);
      workers.step(means);
      expect_alike(means);
      for (std::size_t e = 0; e < difference.size(); ++e) {
        difference[e] -= kWorkers * static_cast<double>(means[0][e]);
        energy += static_cast<double>(means[0][e]) * static_cast<double>(means[0][e]);
      }
    }
    double left = 0;
    for (int rank = 0; rank < kWorkers; ++rank) {
      const std::vector<float> residual = workers.residual(rank);
      for (std::size_t e = 0; e < difference.size(); ++e) difference[e] -= static_cast<double>(residual[e]);
    }
    for (const double value : difference) left += value * value;
    EXPECT_LT(left, (stage == "bf16" ? 1e-4 : stage == "fp16" ? 1e-6 : 1e-9) * energy);
  }
}

class GradiveqFollowFeedback : public ::testing::TestWithParam<std::string> {};

// With feedback every direction gets through: over many steps with one gradient of full rank the mean of what was decoded
// nears it, as what is left stays bounded. Without, what components and probes miss never does.
TEST_P(GradiveqFollowFeedback, NoDirectionIsOutOfReach) {
  double error[2], left[2];
  const Gradients inputs = make_gradients("normal", 3, kConv.elements());
  for (const bool feedback : {false, true}) {
    Workers workers(kConv, 3, {.compressor = "gradiveq:refresh=every,smallest=0,ratio=4," + GetParam() + ",feedback=" + (feedback ? "on" : "off")});
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

INSTANTIATE_TEST_SUITE_P(FewProbesAndMany, GradiveqFollowFeedback, ::testing::Values("axis=filter,probes=1", "axis=square,probes=0"),
                         [](const auto& spec) { return spec.index == 0 ? "OneProbe" : "AsRatioAllows"; });

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

TEST(GradiveqFollowRange, ToMeasureTheErrorChangesNothing) {
  for (const std::string feedback : {"off", "on"})
    for (const std::string stage : {"", "/bf16", "/qsgd:bits=4,reduce=sum"}) {
      const std::string spec = "gradiveq:refresh=every,ratio=4,smallest=0,feedback=" + feedback + stage;
      Workers measured(kConv, 2, {.compressor = spec, .measure_every = 1}), unmeasured(kConv, 2, {.compressor = spec});
      Structured gradients(slices_by_definition({64, 16, 3, 3}, "filter", 144), 2, 0.5f);
      for (int step = 0; step < 5; ++step) {
        Gradients means = gradients.draw(2), others = means;
        measured.step(means);
        unmeasured.step(others);
        ASSERT_EQ(means, others) << spec << " in step " << step;
      }
      const Counters counters = measured.reducer(0).counters();
      EXPECT_GT(counters.error_energy, 0) << spec;
      EXPECT_LT(counters.error_energy, counters.measured_energy) << spec;
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
  for (const char* spec : {"gradiveq:refresh=every,rate=1", "gradiveq:refresh=every,energy=0.5", "gradiveq:refresh=every/casq:bits=2"})
    EXPECT_THROW(canonical_spec(spec), ArgumentError) << spec;
  EXPECT_NO_THROW(canonical_spec("gradiveq:refresh=every,ratio=8"));
}

TEST(GradiveqFollowSpec, WhatSavesNothingTravelsUncompressed) {
  for (const char* spec : {"gradiveq:refresh=every,dims=144,smallest=0", "gradiveq:refresh=every,dims=100,smallest=0",
                           "gradiveq:refresh=every,axis=filter,dims=144,probes=1,smallest=0",
                           "gradiveq:refresh=every,axis=filter,dims=141,probes=1,smallest=0",  // 142 rows of 64 and one of 144
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
