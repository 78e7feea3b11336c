#include "compressors/casq/rate_control.h"

#include <algorithm>
#include <cmath>

namespace thinwire::casq {
namespace {

constexpr double kNearEnough = 0.005;
constexpr double kLeastStride = 1e-3;
constexpr int kMostTrials = 40;
// From a step that is near, rates are as step^-1, roughly; strides go somewhat farther than that says, to have the wanted one between two.
constexpr int kNearTrials = 2;
constexpr double kFarther = 1.25, kShortestStride = 0.02;
// How much coarser the second step is that tells how fast rates fall.
constexpr double kCoarser = 1.4142135623730951, kLeastSlope = 0.1;

// A step, by its logarithm to base 2, and the rate found there; 0 for none.
struct Trial {
  double step, rate;
};

float limited(double step) {
  return static_cast<float>(std::clamp(step, double{kernels::kLeastStep}, double{kernels::kLargestStep}));
}

double largest_of(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

}  // namespace

std::size_t sample_size(std::size_t elements, std::size_t runs) { return std::min(elements, runs * kSampleRun); }

void copy_sample(std::span<const float> values, std::size_t runs, std::span<float> sample) {
  for_each_run(values.size(), runs, [&](std::size_t first, std::size_t begin, std::size_t length) {
    std::ranges::copy(values.subspan(first, length), sample.subspan(begin).begin());
  });
}

double estimated_rate(std::span<const float> sample, float step, ChunkEncoder& encoder) {
  double bits = 0;
  for (std::size_t begin = 0; begin < sample.size(); begin += kMostChunkElements)
    bits += encoder.estimate_bits(sample.subspan(begin, std::min(kMostChunkElements, sample.size() - begin)), step);
  return bits / static_cast<double>(sample.size());
}

// The rate falls as the step grows. Strides find two steps around the wanted one, in logarithms; then straight lines between them come nearer,
// or halves where lines are slow.
SampledStep choose_step(std::span<const float> sample, double rate, ChunkEncoder& encoder, float guess) {
  const double largest = largest_of(sample);
  if (largest == 0) return {};
  const double least_step = std::log2(double{kernels::kLeastStep}), most_step = std::log2(double{kernels::kLargestStep});
  Trial low{least_step, 0}, high{std::clamp(std::log2(largest) + 1, least_step, most_step), 0};  // nothing is left at high
  double taken = 0, longest = 1;
  double next = std::clamp(guess > 0 ? std::log2(double{guess}) : high.step - 6, low.step, high.step);
  for (int trial = 0; trial < kMostTrials; ++trial) {
    taken = estimated_rate(sample, limited(std::exp2(next)), encoder);
    if (std::fabs(taken - rate) <= kNearEnough * rate || high.step - low.step < kLeastStride) break;
    (taken > rate ? low : high) = {next, taken};
    if (low.rate == 0 || high.rate == 0) {
      const double stride = trial < kNearTrials ? std::clamp(kFarther * std::fabs(std::log2(taken / rate)), kShortestStride, longest) : longest;
      next = taken > rate ? std::min(high.step, next + stride) : std::max(low.step, next - stride);
      longest *= 2;
      if (next == low.step || next == high.step) next = (low.step + high.step) / 2;
    } else {
      const double share = trial % 3 == 2 ? 0.5 : std::clamp((low.rate - rate) / (low.rate - high.rate), 0.05, 0.95);
      next = low.step + (high.step - low.step) * share;
    }
  }
  const float step = limited(std::exp2(next));
  const double coarser = estimated_rate(sample, limited(kCoarser * double{step}), encoder);
  return {step, taken, std::clamp(std::log2(taken / coarser) / std::log2(kCoarser), kLeastSlope, kMostSlope)};
}

}  // namespace thinwire::casq
