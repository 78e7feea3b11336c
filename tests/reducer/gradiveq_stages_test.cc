// What carries gradiveq's coefficients, and what it remembers of them.
#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "compressors/registry.h"
#include "reducer/gradiveq_samples.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

// Of several pieces, each of several chunks of coefficients; of one piece; too small for a basis.
const Layout kLayout({{"long", {700, 48, 3, 3}}, {"short", {256, 48, 3, 3}}, {"bias", {64}}});

std::vector<std::vector<std::size_t>> filters_of(const Layout& layout) {
  std::vector<std::vector<std::size_t>> slices;
  for (std::size_t p = 0; p < layout.parameters().size(); ++p) {
    const auto& parameter = layout.parameters()[p];
    const std::size_t elements = parameter.elements(), k = parameter.shape.size() == 4 ? 432 : elements;
    for (std::size_t first = 0; first < elements; first += k) {
      slices.emplace_back();
      for (std::size_t i = 0; i < k; ++i) slices.back().push_back(layout.offset(p) + first + i);
    }
  }
  return slices;
}

// Along input channels, which lie near a space of 8 dimensions. Where output channels differ in magnitude (spread 2) a stage that goes by neighbours
// has coefficients channel by channel.
Structured along_inputs(const Layout& layout, float noise, float spread) {
  std::vector<std::vector<std::size_t>> slices;
  for (std::size_t p = 0; p < layout.parameters().size(); ++p) {
    const auto& shape = layout.parameters()[p].shape;
    if (shape.size() == 4) {
      const std::vector<std::size_t> sizes(shape.begin(), shape.end());
      for (auto& slice : slices_by_definition(sizes, "in", sizes[1])) {
        for (std::size_t& place : slice) place += layout.offset(p);
        slices.push_back(std::move(slice));
      }
    } else {
      for (std::size_t i = 0; i < layout.parameters()[p].elements(); ++i) slices.push_back({layout.offset(p) + i});
    }
  }
  return Structured(std::move(slices), 8, noise, 7, spread, 9);
}

std::string cycle(const std::string& more) { return "gradiveq:learn=2,lag=0,use=6,slice=432," + more; }

std::uint64_t sent(Workers& workers) {
  return workers.reducer(0).counters().payload_bytes + workers.reducer(0).counters().second_bytes;
}

std::vector<std::string> rate_specs() {
  std::vector<std::string> all;
  for (const std::string components : {"ratio=1,axis=filter", "ratio=4", "ratio=1,axis=in", "ratio=8,axis=auto"})
    for (const std::string reduce : {"gather", "scatter"}) all.push_back(cycle(components) + "/casq:rate=1,reduce=" + reduce);
  return all;
}

class GradiveqByRate : public ::testing::TestWithParam<std::string> {};

// Sum of inputs = W means + residuals, over steps, cycles, workers and threads; and no thread changes a bit.
TEST_P(GradiveqByRate, MeansAgreeAndNothingIsLost) {
  for (const int count : {1, 2, 3, 5}) {
    std::vector<Gradients> by_one_thread;
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(std::to_string(count) + " workers, " + std::to_string(threads) + " threads");
      Workers workers(kLayout, count, {.compressor = GetParam(), .threads = threads});
      Structured gradients = count == 3 ? along_inputs(kLayout, 0.2f, 2) : Structured(filters_of(kLayout), 8, 0.2f);
      std::vector<double> balance(kLayout.elements());
      for (std::size_t step = 0; step < 10; ++step) {
        Gradients means = gradients.draw(count);
        for (const auto& gradient : means)
          for (std::size_t i = 0; i < balance.size(); ++i) balance[i] += static_cast<double>(gradient[i]);
        workers.step(means);
        expect_alike(means);
        double left = 0;
        for (std::size_t i = 0; i < balance.size(); ++i) balance[i] -= count * static_cast<double>(means[0][i]);
        std::vector<double> off = balance;
        for (int rank = 0; rank < count; ++rank) {
          const auto residual = workers.residual(rank);
          for (std::size_t i = 0; i < off.size(); ++i) off[i] -= static_cast<double>(residual[i]);
        }
        for (const double value : off) left = std::max(left, std::abs(value));
        ASSERT_LT(left, 2e-3) << "at step " << step;
        if (threads == 1) by_one_thread.push_back(means);
        else ASSERT_EQ(means, by_one_thread[step]) << "at step " << step;
      }
    }
  }
}

// Bits are the rate's, of as many coefficients as there are, in a basis' first step and later; of two workers each sends half of them twice, with reduce=scatter.
TEST_P(GradiveqByRate, BitsAreTheRates) {
  const auto has = [](const char* part) { return GetParam().find(part) != std::string::npos; };
  if (has("auto")) return;  // the cut decides how many coefficients there are
  const double ratio = has("ratio=4") ? 4 : 1;
  const double coefficients = (700 + 256) * 432 / ratio;
  const bool scatters = has("scatter");  // few chunks, of which one worker owns more: shards are as long as the longest
  Workers workers(kLayout, 2, {.compressor = GetParam()});
  Structured gradients(filters_of(kLayout), 30, 1.0f);
  for (int step = 0; step < 16; ++step) {
    Gradients means = gradients.draw(2);
    const std::uint64_t before = sent(workers);
    workers.step(means);
    const auto bytes = static_cast<double>(sent(workers) - before);
    // A learning step's values are as many as there are. The bias travels as floats.
    const double carried = step % 8 < 2 ? ratio * coefficients : coefficients, rest = 4 * 64 + 200;
    EXPECT_GT(bytes, 0.9 * carried / 8) << "step " << step;
    EXPECT_LT(bytes, (scatters ? 2 : 1.1) * carried / 8 + rest) << "step " << step;
  }
}

// Values that lie near a space of few dimensions: the coder spends its bits there, and next to none on the other components.
TEST_P(GradiveqByRate, LeavesFarLessThanTheEntriesCodedAlike) {
  const std::string stage = GetParam().substr(GetParam().find('/') + 1) + ",feedback=off";
  Workers projected(kLayout, 3, {.compressor = GetParam() + ",feedback=off"}), alone(kLayout, 3, {.compressor = stage});
  Structured gradients = GetParam().find("axis=in") == std::string::npos ? Structured(filters_of(kLayout), 8, 0.05f) : along_inputs(kLayout, 0.05f, 0);
  double error = 0, error_alone = 0;
  for (int step = 0; step < 8; ++step) {
    Gradients means = gradients.draw(3), others = means;
    const std::vector<float> exact = mean_of(means);
    projected.step(means);
    alone.step(others);
    if (step < 2) continue;  // learning
    error += relative_error(means[0], exact);
    error_alone += relative_error(others[0], exact);
  }
  EXPECT_LT(error, 0.2 * error_alone);
}

INSTANTIATE_TEST_SUITE_P(Specs, GradiveqByRate, ::testing::ValuesIn(rate_specs()), [](const auto& spec) {
  std::string name = spec.param;
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
});

// A state goes on with the same bits wherever in the cycle it was saved: what the stage remembers is part of it.
TEST(GradiveqStages, AStateGoesOnWithTheSameBits) {
  for (const std::string& spec : {cycle("ratio=2/casq:rate=1"), cycle("ratio=2,axis=in/casq:rate=1"), cycle("ratio=2/qsgd:bits=4,coding=entropy,reduce=gather")})
    for (const int saved_after : {1, 3, 5, 9}) {
      SCOPED_TRACE(spec + " after " + std::to_string(saved_after));
      Workers original(kLayout, 2, {.compressor = spec}), restored(kLayout, 2, {.compressor = spec});
      Structured gradients = spec.find("axis=in") == std::string::npos ? Structured(filters_of(kLayout), 8, 0.2f) : along_inputs(kLayout, 0.2f, 2);
      for (int step = 0; step < saved_after; ++step) {
        Gradients means = gradients.draw(2);
        original.step(means);
      }
      for (int rank = 0; rank < 2; ++rank) restored.reducer(rank).load_state(original.reducer(rank).state());
      for (int step = 0; step < 4; ++step) {
        Gradients means = gradients.draw(2), others = means;
        const std::uint64_t before = sent(original), others_before = sent(restored);
        original.step(means);
        restored.step(others);
        ASSERT_EQ(means, others) << "step " << step;
        ASSERT_EQ(sent(original) - before, sent(restored) - others_before) << "step " << step;
      }
    }
}

// What a stage remembers is forgotten with its basis: a cycle begins as the first one did, whatever scale the one before was of.
TEST(GradiveqStages, WhatIsRememberedGoesWithTheBasis) {
  const std::string spec = cycle("ratio=2/casq:rate=1,feedback=off");
  Workers one(kLayout, 2, {.compressor = spec}), other(kLayout, 2, {.compressor = spec});
  Structured gradients(filters_of(kLayout), 8, 0.2f);
  for (int step = 0; step < 16; ++step) {
    Gradients means = gradients.draw(2), others = means;
    if (step < 8)
      for (auto& gradient : others)
        for (float& value : gradient) value *= 1000 * value;
    one.step(means);
    other.step(others);
    if (step >= 8) { ASSERT_EQ(means, others) << "step " << step; }
  }
}

// Of a step that is not committed nothing is left: it is as if it had not been.
TEST(GradiveqStages, ANonFiniteStepLeavesNothing) {
  const std::string spec = cycle("ratio=2/casq:rate=1");
  Workers one(kLayout, 2, {.compressor = spec}), other(kLayout, 2, {.compressor = spec});
  Structured gradients(filters_of(kLayout), 8, 0.2f);
  for (int step = 0; step < 7; ++step) {
    if (step == 0 || step == 2 || step == 4) {
      Gradients spoilt = gradients.draw(2);
      spoilt[1][5] = std::nanf("");
      other.step(spoilt);
    }
    Gradients means = gradients.draw(2), others = means;
    one.step(means);
    other.step(others);
    ASSERT_EQ(means, others) << "step " << step;
  }
}

TEST(GradiveqStages, WhatRemembersMayNotFollowComponentsThatChangeInEveryStep) {
  EXPECT_NO_THROW(canonical_spec("gradiveq:refresh=cycle/casq:rate=1"));
  EXPECT_THROW(canonical_spec("gradiveq:refresh=every/casq:rate=1"), ArgumentError);
  EXPECT_THROW(canonical_spec("gradiveq:rate=1/casq:rate=1"), ArgumentError);
  EXPECT_THROW(canonical_spec("gradiveq/casq:bits=2"), ArgumentError);  // trained on whole parameters
}

}  // namespace
}  // namespace thinwire::testing
