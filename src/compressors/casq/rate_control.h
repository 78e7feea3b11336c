// The step at which gradients take a given number of bits an entry, told before anything is encoded.
#pragma once

#include <cstddef>
#include <span>

#include "compressors/casq/rate_chunk.h"

namespace thinwire::casq {

// Values to tell bits from are runs of neighbours, because a block's classes are coded by those of the block before.
constexpr std::size_t kSampleRun = 4 * kernels::kLevelBlock;
// Of so many runs of that many elements, evenly spaced; or all of them, where they are no more.
std::size_t sample_size(std::size_t elements, std::size_t runs);
// Calls body(first, begin, length) for each of them: from which element on, and from where in the sample.
template <class Body>
void for_each_run(std::size_t elements, std::size_t runs, const Body& body) {
  if (elements <= runs * kSampleRun) return body(0, 0, elements);
  for (std::size_t r = 0; r < runs; ++r) {
    const std::size_t spare = elements - kSampleRun, first = runs == 1 ? spare / 2 : spare * r / (runs - 1);
    body(first / kernels::kLevelBlock * kernels::kLevelBlock, r * kSampleRun, kSampleRun);
  }
}
// sample: sample_size(values.size(), runs).
void copy_sample(std::span<const float> values, std::size_t runs, std::span<float> sample);

// Bits an entry that a sample takes at a step, the fixed cost of chunks included as if it were full ones.
double estimated_rate(std::span<const float> sample, float step, ChunkEncoder& encoder);

constexpr double kMostSlope = 8;
// A step, what estimated_rate() says of it, and how fast that falls: rates are as step^-slope, near it.
struct SampledStep {
  float step = 0;
  double rate = 0, slope = 1;
};

// The step at which estimated_rate() of the finite sample is `rate`, to half a percent, or as near as there is. 0 for a sample that
// tells nothing because all of it is 0. Begins to look at `guess`, if it is not 0: a near one saves time.
SampledStep choose_step(std::span<const float> sample, double rate, ChunkEncoder& encoder, float guess = 0);

}  // namespace thinwire::casq
