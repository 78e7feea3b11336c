// CASQ's first half: a chunk's values are divided among clusters, and their codes packed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compressors/casq/casq_chunk.h"
#include "kernels/statistics.h"

namespace thinwire {

// Brings a chunk's values near 1 by a power of two while they are divided, if their squares or sums could leave the range
// of float, and back at the end.
class InFloatRange {
 public:
  InFloatRange(std::span<float> values, const kernels::Magnitudes& magnitudes);

  const kernels::Magnitudes& magnitudes() const { return magnitudes_; }
  int exponent() const { return exponent_; }  // values were divided by 2 to this power
  // What follows is again as large as it was.
  void undo(std::span<float> values) const;

 private:
  std::span<float> values_;
  kernels::Magnitudes magnitudes_;
  int exponent_ = 0;
};

// Sums over the entries of each cluster, of value times block scale, and of squared block scales; without blocks the scale
// is 1. Their quotient is what a cluster decodes to (times the scale): an orthogonal projection in either case.
struct ClusterTotals {
  std::array<double, CasqChunk::kMostClusters> sums;
  std::array<double, CasqChunk::kMostClusters> weights;

  double centre(std::size_t cluster) const { return weights[cluster] > 0 ? sums[cluster] / weights[cluster] : 0; }
};

class CasqDivision {
 public:
  // Writes the blocks' scales. Everything given must outlive it.
  CasqDivision(const CasqChunk& chunk, std::span<const float> values, const InFloatRange& range,
               const CasqChunk::Parts<std::byte>& parts);

  // Writes the codes by normalised thresholds. False if the clusters keep less than a cluster for each sign would; then the
  // caller may divide again.
  bool divide(std::span<const float> normalised);

  const ClusterTotals& totals() const { return totals_; }
  // One step of Lloyd's algorithm: a threshold moves to the middle of the centres beside it, for this chunk's next encoding.
  // Beside an empty cluster it stays, and at 0 where signs are apart; so thresholds remain in order.
  void follow(Signs signs, std::span<float> thresholds) const;

 private:
  void measure_blocks(int exponent, std::span<std::byte> scales);
  void divide_chunk(std::span<const float> normalised);
  void divide_blocks(std::span<const float> normalised);
  double kept_energy() const;

  const CasqChunk& chunk_;
  std::span<const float> values_;
  std::span<std::byte> codes_;
  float unit_;                // by which the chunk's thresholds are multiplied
  double energy_of_signs_;    // the least that a cluster for each sign would keep
  std::array<float, kChunkElements / CasqChunk::kBlockElements> scales_;
  ClusterTotals totals_;
};

}  // namespace thinwire
