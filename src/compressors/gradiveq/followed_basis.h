// Principal components of a parameter's slices that are brought up to date by every step's decoded mean.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "compressors/gradiveq/gradiveq_follow.h"
#include "core/work.h"

namespace thinwire {

// Rows of a matrix made orthonormal, one after another, beside the first `done`, which are already. What lies in the span of
// earlier rows, to rounding, becomes 0.
void orthonormalize(const kernels::Matrix& rows, std::size_t done = 0);

class FollowedBasis : public CompressorMemory {
 public:
  FollowedBasis(const Parameter& parameter, const FollowOptions& options);

  const Slices& slices() const { return slices_; }
  std::size_t dims() const { return dims_; }      // 0: the parameter travels uncompressed
  std::size_t probes() const { return probes_; }
  // dims() components, then probes(); null before the first step.
  const float* rows() const { return working_ ? working_->rows.data() : nullptr; }

  // From a first mean; from what a step decoded: sums of coefficients (dims() rows) with P (probes() rows) after them, and of Z.
  void begin(std::span<const float> mean);
  void follow(const kernels::ConstMatrix& coefficients, const kernels::ConstMatrix& z);

  void begin_step() override { working_ = committed_; }
  void commit_step() override { committed_ = working_; }
  std::vector<std::byte> save() const override;
  void load(std::span<const std::byte> saved) override;

 private:
  struct State {
    std::vector<float> rows;        // (dims + probes) x K, orthonormal or 0
    std::vector<float> deviations;  // dims
  };
  std::size_t all_rows() const { return dims_ + probes_; }
  void fill_probes(const kernels::Matrix& rows) const;

  Parameter parameter_;
  Slices slices_;
  std::size_t dims_ = 0;
  std::size_t probes_ = 0;
  std::shared_ptr<const State> committed_;
  std::shared_ptr<const State> working_;
};

}  // namespace thinwire
