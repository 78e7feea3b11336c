// CASQ, cluster-aware sketch quantization.
//
// Source: "Cluster-aware sketch quantization", IEEE CLUSTER 2021; Sci. China Inf. Sci. 66:162102, 2023.
// Symbols: q bits an entry (`bits`), C = 2^q clusters, c(i) the cluster of entry i, T the value a cluster decodes to.
//
// 1. Clusters, for each parameter by itself, retrained every `retrain` steps: all workers add up histograms of their
//    values, each chunk of the grid normalised by its own mean magnitude, and optimal_thresholds() divides the line.
//    Only normalised thresholds are remembered, for each chunk. signs=apart: a cluster holds values of one sign, as
//    published. Free, the default, left on gradients of a CNN a sixth less error, because most values want to share one
//    cluster around zero.
// 2. Encode, for each chunk: thresholds times the chunk's mean magnitude give c(i); T[c] is the mean, this step and on
//    this worker, of the entries of cluster c. Whatever the thresholds, cluster means are an orthogonal projection:
//    |g - g'|^2 = |g|^2 - |g'|^2, a contraction, even when the thresholds are old. Where they keep less than a cluster
//    for each sign would (all of a chunk in one cluster, because another chunk, worker or step had an outlier), the
//    chunk is divided by the untrained ones, one of which is 0, and goes on from them.
//    At the end the chunk's thresholds move to the middles of neighbouring T, which is a step of Lloyd's algorithm: over
//    the steps they follow the chunk, the worker, and the residual, of which the first training knew nothing.
// 3. Wire: T, 32 bits each, and q bits an entry: 32 * 2^q + q * n bits a chunk of n entries, rounded up to bytes.
// 4. Decode: T[c(i)]; what a worker's values and T differ by stays in its residual.
//
// Rounds: one gather a step (reduce=scatter: a scatter and a gather), and a sum of 3,584 bytes a parameter when clusters are
// trained.
// Memory passes: encode reads the values from memory once and twice more in the cache; decode writes the mean once.
//
// Differences from the published system, and why, are in docs/design.md. Bucket tables (the sketch) and their allocation
// belong between 2 and 3: T[c] would become T[c, b].
#pragma once

#include <vector>

#include "compressors/clusters.h"
#include "compressors/compressor.h"
#include "compressors/reduce_coded.h"

namespace thinwire {

class Casq : public Compressor, private PieceCodec {
 public:
  static constexpr std::uint8_t kWireId = 16;
  static constexpr std::uint8_t kWireVersion = 1;

  // bits: 1 to 4. retrain: steps between trainings of the clusters.
  Casq(int bits, std::uint64_t retrain, Signs signs, Reduce reduce);

  Exchange exchange(Work& work, Context& context) const override;
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& parameter) const override;
  bool needs_preparation(std::uint64_t steps) const override;
  Exchange prepare(std::span<const ParameterView* const> parameters, Context& context) const override;

 private:
  std::uint8_t wire_id() const override { return kWireId; }
  std::uint8_t wire_version() const override { return kWireVersion; }
  std::size_t encoded_bytes(const Piece& piece) const override;
  void encode(Piece& piece, const kernels::Magnitudes& magnitudes, std::span<std::byte> encoded) const override;
  void check(std::span<const std::byte> encoded, const Piece& piece) const override;
  void decode(std::span<const std::byte> encoded, const Piece& piece, float weight, bool add, std::span<float> mean) const override;

  std::size_t clusters() const { return std::size_t{1} << bits_; }

  int bits_;
  std::uint64_t retrain_;
  Signs signs_;
  Reduce reduce_;
  std::vector<float> untrained_;  // thresholds before the first training
};

}  // namespace thinwire
