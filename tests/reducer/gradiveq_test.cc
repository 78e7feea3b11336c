// GradiVeQ against slow, obvious references.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "reducer/gradiveq_samples.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

std::string spec_of(const Cut& cut, const std::string& more) {
  return "gradiveq:axis=" + cut.axis + ",slice=" + std::to_string(cut.slice) + ",smallest=0,learn=3,lag=1,use=3," + more;
}

class Gradiveq : public ::testing::TestWithParam<Cut> {};

// Where K does not divide a line, its last slice is short: its zeros span a space of their own, beside two means.
std::size_t dims_of(const Cut& cut) {
  const auto slices = slices_by_definition(cut.shape, cut.axis, cut.entries);
  const bool short_ones = std::any_of(slices.begin(), slices.end(), [&](const auto& slice) { return slice.size() < cut.entries; });
  return short_ones ? 5 : 2;
}

// Two dimensions and a mean are found exactly wherever slices are cut, in every piece.
TEST_P(Gradiveq, FindsTheSpaceThatSlicesLieIn) {
  const Cut& cut = GetParam();
  const std::size_t dims = dims_of(cut);
  for (const int count : {1, 2, 3, 5}) {
    Workers workers(layout_of(cut), count, {.compressor = spec_of(cut, "dims=" + std::to_string(dims))});
    Structured gradients(slices_by_definition(cut.shape, cut.axis, cut.entries), 2, 0.0f);
    for (int step = 0; step < 14; ++step) {
      Gradients means = gradients.draw(count);
      const std::vector<float> exact = mean_of(means);
      const std::uint64_t before = workers.reducer(0).counters().payload_bytes;
      workers.step(means);
      expect_alike(means);
      EXPECT_LT(relative_error(means[0], exact), 1e-7) << "step " << step << ", " << count << " workers";
      const std::size_t lines = exact.size() / whole_line(cut) + (cut.axis == "flat" && exact.size() % cut.entries != 0 ? 1 : 0);
      const std::size_t slices = cut.axis == "flat" ? (exact.size() + cut.entries - 1) / cut.entries
                                                    : lines * ((whole_line(cut) + cut.entries - 1) / cut.entries);
      const bool uses = step % 7 >= 4;
      EXPECT_EQ(workers.reducer(0).counters().payload_bytes - before, 4 * (uses ? dims * slices : exact.size())) << step;
      if (HasFailure()) return;
    }
    // Once a cycle: a max of two numbers a parameter, and the basis.
    EXPECT_EQ(workers.reducer(0).counters().setup_bytes, 2 * (2 * 4 + 4 * (dims * cut.entries + cut.entries + dims)));
  }
}

// Noise beyond the components is lost: what is decoded is the projection, which can be computed from what went in before.
TEST_P(Gradiveq, IsLinear) {
  const Cut& cut = GetParam();
  for (const int count : {1, 2, 3, 5, 16}) {
    if (count > 3 && cut.entries == 900) continue;  // the same, but slow
    expect_linear(cut, spec_of(cut, "ratio=4"), count, 7);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryAxis, Gradiveq, ::testing::ValuesIn(cuts()), name_of_cut);

std::vector<std::vector<std::size_t>> filters() { return slices_by_definition({64, 16, 3, 3}, "filter", 144); }

TEST(GradiveqSize, EnergyKeepsAsManyComponentsAsItTakes) {
  Workers workers(kConv, 2, {.compressor = "gradiveq:energy=0.9999,learn=2,lag=0,use=10,smallest=0"});
  Structured gradients(filters(), 6, 1e-4f);
  for (int step = 0; step < 3; ++step) {
    Gradients means = gradients.draw(2);
    const std::vector<float> exact = mean_of(means);
    const std::uint64_t before = workers.reducer(0).counters().payload_bytes;
    workers.step(means);
    if (step == 2) {
      EXPECT_EQ(workers.reducer(0).counters().payload_bytes - before, 4 * 6 * 64);
      EXPECT_LT(relative_error(means[0], exact), 2e-4);
    }
  }
}

TEST(GradiveqSize, AutoTakesTheAxisWhoseSlicesLieInOneSpace) {
  for (const std::string axis : {"filter", "in", "kernel"}) {
    const std::size_t k = axis == "filter" ? 144 : axis == "in" ? 16 : 9;
    Workers workers(kConv, 2, {.compressor = "gradiveq:axis=auto,ratio=5,learn=2,lag=0,use=100,smallest=0"});
    Structured gradients(slices_by_definition({64, 16, 3, 3}, axis, k), 1, 1e-3f);
    for (int step = 0; step < 3; ++step) {
      Gradients means = gradients.draw(2);
      const std::vector<float> exact = mean_of(means);
      workers.step(means);
      EXPECT_LT(relative_error(means[0], exact), 1e-3) << axis << " in step " << step;
    }
  }
}

TEST(GradiveqSize, WhatSavesNothingTravelsUncompressed) {
  for (const std::string spec : {"gradiveq:dims=144,learn=1,lag=0,smallest=0", "gradiveq:dims=2,learn=1,lag=0,smallest=1000000",
                                 "gradiveq:ratio=1,learn=1,lag=0,smallest=0", "gradiveq:dims=60,use=1,learn=1,lag=0,smallest=0"}) {
    Workers workers(kConv, 2, {.compressor = spec});
    Structured gradients(filters(), 5, 1.0f);
    for (int step = 0; step < 2; ++step) {
      Gradients means = gradients.draw(2);
      const std::vector<float> exact = mean_of(means);
      workers.step(means);
      EXPECT_LT(relative_error(means[0], exact), 1e-12) << spec;
    }
  }
}

TEST(GradiveqSize, ParametersWithoutChannelsAreFlat) {
  Workers workers(Layout({{"bias", {3001}}, {"scalar", {}}, {"none", {0, 3}}}), 2, {.compressor = "gradiveq:slice=100,dims=3,learn=2,lag=0,use=5,smallest=0"});
  for (unsigned step = 0; step < 4; ++step) {
    Gradients means = make_gradients("normal", 2, 3002, step);
    workers.step(means);
    expect_alike(means);
  }
}

// Two gradients far beyond and below the range in which squares are floats.
TEST(GradiveqRange, LargeAndSmallGradientsAreLearnt) {
  for (const float scale : {1e30f, 1e-30f}) {
    Workers workers(kConv, 2, {.compressor = "gradiveq:dims=2,learn=2,lag=0,smallest=0"});
    Structured gradients(filters(), 2, 0.0f);
    for (int step = 0; step < 3; ++step) {
      Gradients means = gradients.draw(2);
      for (auto& gradient : means)
        for (float& value : gradient) value *= scale;
      const std::vector<float> exact = mean_of(means);
      workers.step(means);
      EXPECT_LT(relative_error(means[0], exact), 1e-9) << scale;
    }
  }
}

TEST(GradiveqRange, AGradientThatIsNotFiniteIsNotLearntFrom) {
  Workers workers(kConv, 2, {.compressor = "gradiveq:dims=2,learn=3,lag=0,smallest=0"});
  Structured gradients(filters(), 2, 0.0f);
  for (int step = 0; step < 5; ++step) {
    Gradients means = gradients.draw(2);
    if (step == 1) means[1][77] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> exact = mean_of(means);
    workers.step(means);
    if (step != 1) { EXPECT_LT(relative_error(means[0], exact), 1e-9) << step; }
    if (step == 1) { EXPECT_TRUE(std::isnan(means[0][77])); }
  }
}

TEST(GradiveqFeedback, WhatWasNotSentGoesOutInTheLearningSteps) {
  for (const std::string feedback : {"on", "flush"}) {
    Workers workers(kConv, 2, {.compressor = "gradiveq:dims=2,learn=4,lag=1,use=5,smallest=0,feedback=" + feedback});
    Structured gradients(filters(), 10, 0.1f);
    double largest = 0, at_use_end = 0;
    for (int step = 0; step < 20; ++step) {
      Gradients means = gradients.draw(2);
      const std::vector<float> exact = mean_of(means);
      workers.step(means);
      double left = 0;
      for (const float value : workers.residual(1)) left += static_cast<double>(value) * static_cast<double>(value);
      if (step == 9) at_use_end = left;
      if (step == 10) {
        largest = left;
        EXPECT_GT(relative_error(means[0], exact), feedback == "on" ? 1.0 : 0.1);
      }
      if (step == 13) { EXPECT_LT(left, 1e-6 * at_use_end); }
    }
    EXPECT_GT(at_use_end, 0);
    if (feedback == "on")
      EXPECT_EQ(largest, 0);
    else
      EXPECT_NEAR(largest, 9.0 / 16 * at_use_end, 1e-3 * at_use_end);  // a quarter of it is sent
  }
}

std::vector<std::string> specs_of_a_cycle() {
  return {"gradiveq:ratio=8,learn=3,lag=2,use=4,smallest=0", "gradiveq:ratio=8,learn=3,lag=0,use=4,smallest=0,feedback=flush",
          "gradiveq:axis=auto,ratio=8,learn=3,lag=2,use=4,smallest=0", "gradiveq:ratio=8,learn=3,lag=2,use=4,smallest=0/qsgd:bits=4",
          "gradiveq:rate=2,learn=3,lag=2,use=4,smallest=0,feedback=on", "gradiveq:refresh=every,ratio=4,smallest=0,feedback=on",
          "gradiveq:refresh=every,ratio=4,smallest=0,feedback=on/qsgd:bits=4,reduce=sum"};
}

// At every step of a cycle: what was saved goes on with the same bits.
TEST(GradiveqState, IsSavedAndLoadedInEveryStep) {
  for (const std::string& spec : specs_of_a_cycle()) {
    const Layout layout({{"a", {64, 16, 3, 3}}, {"b", {30, 20}}});
    for (int saved_at = 0; saved_at < 10; ++saved_at) {
      Workers workers(layout, 3, {.compressor = spec}), resumed(layout, 3, {.compressor = spec});
      for (int step = 0; step < 14; ++step) {
        Gradients one = make_gradients("normal", 3, layout.elements(), static_cast<unsigned>(step)), other = one;
        if (step == saved_at)
          for (int rank = 0; rank < 3; ++rank) resumed.reducer(rank).load_state(workers.reducer(rank).state());
        workers.step(one);
        if (step < saved_at) continue;
        resumed.step(other);
        ASSERT_EQ(one, other) << spec << ", saved before step " << saved_at << ", at step " << step;
      }
    }
  }
}

class GradiveqReshaped : public ::testing::TestWithParam<std::string> {};

TEST_P(GradiveqReshaped, AnotherShapeIsRefused) {
  const std::string spec = "gradiveq:learn=1,lag=0,smallest=0," + GetParam();
  Workers workers(kConv, 1, {.compressor = spec});
  for (int step = 0; step < 2; ++step) {
    Gradients gradients = make_gradients("normal", 1, kConv.elements());
    workers.step(gradients);
  }
  Reducer other(Layout({{"conv.weight", {32, 32, 3, 3}}}), {.compressor = spec});
  try {
    other.load_state(workers.reducer(0).state());
    FAIL() << "loaded";
  } catch (const StateError& error) {
    EXPECT_NE(std::string(error.what()).find("conv.weight"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(EveryKind, GradiveqReshaped, ::testing::Values("ratio=8", "rate=2", "ratio=8,axis=in", "dims=3,refresh=every"));

// Every way to cut and spoil a saved state is refused, or loads something that works.
class GradiveqSpoilt : public ::testing::TestWithParam<std::string> {};

TEST_P(GradiveqSpoilt, StatesAreRefused) {
  const std::string spec = "gradiveq:slice=9,axis=kernel,learn=1,lag=0,smallest=0," + GetParam();
  const Layout layout({{"conv.weight", {8, 4, 3, 3}}});
  Workers workers(layout, 1, {.compressor = spec});
  for (int step = 0; step < 2; ++step) {
    Gradients gradients = make_gradients("normal", 1, layout.elements());
    workers.step(gradients);
  }
  const auto good = workers.reducer(0).state();
  for (std::size_t length = 0; length < good[0].memory.size(); ++length) {
    auto states = good;
    states[0].memory.resize(length);
    if (length == 0) continue;  // no memory at all
    Reducer reducer(layout, {.compressor = spec});
    EXPECT_THROW(reducer.load_state(states), StateError) << length;
  }
  for (std::size_t byte = 0; byte < good[0].memory.size(); ++byte) {
    auto states = good;
    states[0].memory[byte] ^= std::byte{0xff};
    Reducer reducer(layout, {.compressor = spec});
    try {
      reducer.load_state(states);
    } catch (const StateError&) {
    }
  }
}

INSTANTIATE_TEST_SUITE_P(BothKinds, GradiveqSpoilt, ::testing::Values("ratio=8", "rate=3", "dims=1,refresh=every"));

TEST(GradiveqStage, QuantizedCoefficientsStillAddUp) {
  for (const std::string stage : {"qsgd:bits=8,reduce=sum", "qsgd:bits=8,reduce=gather", "bf16", "none"}) {
    Workers plain(kConv, 4, {.compressor = "gradiveq:dims=8,learn=4,lag=0,smallest=0"});
    Workers staged(kConv, 4, {.compressor = "gradiveq:dims=8,learn=4,lag=0,smallest=0/" + stage});
    Structured gradients(filters(), 8, 0.1f);
    for (int step = 0; step < 6; ++step) {
      Gradients one = gradients.draw(4), other = one;
      plain.step(one);
      const std::uint64_t before = staged.reducer(0).counters().payload_bytes;
      staged.step(other);
      expect_alike(other);
      EXPECT_LT(relative_error(other[0], one[0]), step < 4 ? 1e-12 : 3e-4) << stage << " in step " << step;
      const double bytes = static_cast<double>(staged.reducer(0).counters().payload_bytes - before) / (8 * 64);
      if (step >= 4 && stage != "none") { EXPECT_LT(bytes, 2.1) << "a coefficient by " << stage; }
    }
  }
}

TEST(GradiveqStage, AStageThatRemembersIsRefused) {
  EXPECT_THROW(canonical_spec("gradiveq/casq"), ArgumentError);
  EXPECT_NO_THROW(canonical_spec("gradiveq:ratio=8/qsgd:bits=4"));
}

}  // namespace
}  // namespace thinwire::testing
