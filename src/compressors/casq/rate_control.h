// The step at which gradients take a given number of bits an entry, told before anything is encoded.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "compressors/casq/rate_chunk.h"

namespace thinwire::casq {

// Values to tell bits from are runs of neighbours, because a block's classes are coded by those of the block before.
constexpr std::size_t kSampleRun = 4 * kernels::kLevelBlock;
// Appends one run of each `every` of values, the last of which may be shorter.
void append_sample(std::span<const float> values, std::size_t every, std::vector<float>& sample);

// Bits an entry that a sample takes at a step, the fixed cost of chunks included as if it were full ones.
double estimated_rate(std::span<const float> sample, float step, ChunkEncoder& encoder);

// The step at which estimated_rate() of the finite sample is `rate`, to half a percent, or as near as there is. 0 for a sample that
// tells nothing because all of it is 0. Begins to look at `guess`, if it is not 0: a near one saves time.
float choose_step(std::span<const float> sample, double rate, ChunkEncoder& encoder, float guess = 0);

// Holds a rate from one training step to the next. What a sample says is corrected by what whole gradients really took: as if their scale
// were another one than the sample's.
class RateControl {
 public:
  RateControl() = default;
  explicit RateControl(double correction) : correction_(correction) {}

  // The corrected choose_step(); a sample that tells nothing leaves the last step.
  float choose(std::span<const float> sample, double rate, ChunkEncoder& encoder);
  // Bits an entry that were taken at the step that was chosen last: the next choice is corrected by it.
  void took(double rate) { taken_ = rate; }

  double correction() const { return correction_; }  // what there is to save

 private:
  double correction_ = 1, wanted_ = 0, taken_ = 0;
  float step_ = 0;
};

}  // namespace thinwire::casq
