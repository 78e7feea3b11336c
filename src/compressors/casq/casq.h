// CASQ, cluster-aware sketch quantization.
//
// Source: "Cluster-aware sketch quantization", IEEE CLUSTER 2021; Sci. China Inf. Sci. 66:162102, 2023.
// Symbols: q bits an entry (`bits`), C = 2^q clusters, c(i) the cluster of entry i, T the value a bucket decodes to, m_c the
// buckets of cluster c, b(i) the bucket of entry i.
//
// 1. Clusters, for each parameter by itself, retrained every `retrain` steps: all workers add up histograms of their
//    values, each chunk of the grid normalised by its own mean magnitude, and optimal_thresholds() divides the line.
//    Only normalised thresholds are remembered, for each chunk. signs=apart: a cluster holds values of one sign, as
//    published. Free, the default, left on gradients of a CNN a sixth less error, because most values want to share one
//    cluster around zero. With `budget` bits are divided among parameters too, by what they save of the error.
// 2. Encode, for each chunk: thresholds times the chunk's mean magnitude give c(i); T[c] is the mean, this step and on
//    this worker, of the entries of cluster c. Whatever the thresholds, cluster means are an orthogonal projection:
//    |g - g'|^2 = |g|^2 - |g'|^2, a contraction, even when the thresholds are old. Where they keep less than a cluster
//    for each sign would (all of a chunk in one cluster, because another chunk, worker or step had an outlier), the
//    chunk is divided by the untrained ones, one of which is 0, and goes on from them.
//    At the end the chunk's thresholds move to the middles of neighbouring T, which is a step of Lloyd's algorithm: over
//    the steps they follow the chunk, the worker, and the residual, of which the first training knew nothing.
//    scope=block: entries are first divided by the mean magnitude of their block of 512, and decoded times that.
// 3. Tables, if `table` > 0 (casq_buckets.h): cluster c has m_c buckets, T[c, b] is the mean of what is in bucket b.
// 4. Wire (docs/wire_format.md): T, 32 or 16 bits an entry, and q bits an entry: 32 * 2^q + q * n bits a chunk of n entries,
//    rounded up to bytes; with tables 32 * table * n + 16 * 2^q more, with block scales 16 a block more.
// 5. Decode: T[c(i), b(i)]; what a worker's values and T differ by stays in its residual.
//
// Rounds: one gather a step (reduce=scatter: a scatter and a gather), and a sum of 3,584 bytes a parameter when clusters are
// trained; with `budget` a sum of a float and a broadcast of a byte a parameter more.
// Memory passes: encode reads gradient and residual once, and their sum twice more in the cache; decode reads them again,
// with feedback, and writes the residual and the mean.
//
// Differences from the published system, and why: docs/casq.md.
#pragma once

#include <array>
#include <vector>

#include "compressors/casq/casq_chunk.h"
#include "compressors/casq/casq_options.h"
#include "compressors/shared/compressor.h"

namespace thinwire {

class Casq : public Compressor, private PieceCodec {
 public:
  static constexpr std::uint8_t kWireId = 16;
  static constexpr std::uint8_t kWireVersion = 2;

  explicit Casq(const CasqOptions& options);

  Exchange exchange(Work& work, Context& context) const override;
  bool chooses_by_link() const override { return options_.reduce == Reduce::kAuto; }
  bool serves_owners() const override { return true; }
  std::uint64_t fewest_chunk_elements() const override { return thinwire::fewest_chunk_elements(options_.reduce, kFewestChunkElements); }
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& parameter, std::uint64_t chunk) const override;
  bool needs_preparation(std::uint64_t steps) const override;
  Exchange prepare(std::span<const ParameterView* const> parameters, Context& context) const override;

 private:
  std::uint8_t wire_id() const override { return kWireId; }
  std::uint8_t wire_version() const override { return kWireVersion; }
  std::size_t most_bytes(const Piece& piece) const override { return chunk_of(piece).bytes(); }
  std::size_t encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                           std::span<std::byte> code, std::span<std::byte> room) const override;
  float check(std::span<const std::byte> code, const Piece& piece) const override;
  std::size_t room_bytes(const Piece& piece, std::size_t codes) const override;
  void decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
              std::span<std::byte> room) const override;
  void decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& piece, float weight, std::span<float> values,
                  std::span<std::byte> room) const override;

  bool adaptive() const { return options_.budget > 0; }
  std::span<const float> untrained(int bits) const { return untrained_[static_cast<std::size_t>(bits)]; }
  CasqChunk chunk_of(const Piece& piece) const;
  void choose_bits(std::span<const ParameterView* const> parameters, std::span<const std::int32_t> counts,
                   std::span<const float> energies, Context& context, std::span<std::uint8_t> bits) const;
  void check_bits(std::span<const std::uint8_t> bits) const;

  CasqOptions options_;
  std::array<std::vector<float>, kernels::kMaxCodeBits + 1> untrained_;  // thresholds before the first training, by bits
};

}  // namespace thinwire
