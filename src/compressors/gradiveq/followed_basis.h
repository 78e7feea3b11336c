// Principal components of a parameter's slices that are brought up to date by every step's decoded mean.
#pragma once

#include <span>
#include <vector>

#include "compressors/gradiveq/gradiveq_follow.h"
#include "core/work.h"

namespace thinwire {

// Rows of a matrix made orthonormal, one after another, beside the first `done`, which are already. What lies in the span of
// earlier rows, to rounding, becomes 0. Needs orthonormalize_room(rows.rows - done, done, rows.columns) bytes.
void orthonormalize(const kernels::Matrix& rows, std::size_t done, kernels::MatrixRoom room);
std::size_t orthonormalize_room(std::size_t rows, std::size_t done, std::size_t columns);

class FollowedBasis : public CompressorMemory {
 public:
  FollowedBasis(const Parameter& parameter, const FollowOptions& options);

  const Slices& slices() const { return slices_; }
  std::size_t dims() const { return dims_; }      // 0: the parameter travels uncompressed
  std::size_t probes() const { return probes_; }
  // dims() components, then probes(); null before the first step.
  const float* rows() const { return has_current_ ? current_.rows.data() : nullptr; }
  // What components make of coefficients is no larger than this times the largest of these.
  double reach() const { return current_.reach; }

  // Where there are no components yet: from a mean, if that has something to learn from.
  void begin(std::span<const float> mean);
  // From what a step decoded: sums of coefficients (dims() rows) with P (probes() rows) after them, and of Z. Needs follow_room() bytes
  // for so many slices.
  void follow(const kernels::ConstMatrix& coefficients, const kernels::ConstMatrix& z, kernels::MatrixRoom room);
  std::size_t follow_room(std::size_t slices) const;

  void begin_step() override { has_next_ = false; }
  void commit_step() override;
  std::vector<std::byte> save() const override;
  void load(std::span<const std::byte> saved) override;

 private:
  struct State {
    std::vector<float> rows;        // (dims + probes) x K, orthonormal or 0
    std::vector<float> deviations;  // dims
    double reach = 0;
  };
  std::size_t all_rows() const { return dims_ + probes_; }
  void fill_probes(const kernels::Matrix& rows, kernels::MatrixRoom room) const;
  bool finish(State& state) const;

  Parameter parameter_;
  Slices slices_;
  std::size_t dims_ = 0;
  std::size_t probes_ = 0;
  State current_, next_;  // of the steps so far, and with the one at hand
  bool has_current_ = false, has_next_ = false;
};

}  // namespace thinwire
