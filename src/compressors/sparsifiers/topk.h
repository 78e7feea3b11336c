// Top-k: of each chunk the entries of the largest magnitudes, with their places; error feedback keeps the rest.
//
// Source: Stich, Cordonnier, Jaggi: "Sparsified SGD with memory", NeurIPS 2018, definition 2.1 and algorithm 1. Symbols: d entries, of
// which k are sent: |v - top_k(v)|^2 <= (1 - k/d) |v|^2. Published for a whole gradient, or for each tensor; here for each chunk of the
// grid, d = n entries, 32,768 at most, with k = ceil(density n): so chunks need not wait for each other, and the bound holds for
// each of them, and so for all. What is lost is more than by one threshold for all: of chunks with nothing to say as much is sent.
//
// The k largest are exact; of equal magnitudes those at the lowest places are taken. A chunk's code is k values, float32 or bfloat16
// (values=bf16: rounded to nearest even, beyond the largest finite one to that), in order of their places, and the places in
// k (2 + log2(n/k)) bits at most (places.h). reduce=gather: one round. reduce=scatter: two; means have more than k entries that are not zero, of which
// the k largest are sent, and the rest stays in the owner's residual.
//
// Memory passes: encode reads gradient and residual once, and looks at each chunk once more in the cache; decode writes zeros and k sums.
#pragma once

#include "compressors/shared/compressor.h"
#include "compressors/shared/reduce_coded.h"
#include "compressors/sparsifiers/entries.h"

namespace thinwire {

class TopK : public Compressor, private PieceCodec {
 public:
  static constexpr std::uint8_t kWireVersion = 1;
  enum class Basis : std::uint8_t { kEntries, kCosines };  // what is sent of: a chunk's entries, or those of its cosine transform (demo.cc)

  struct Options {
    const char* name = "";
    std::uint8_t wire_id = 0;
    Basis basis = Basis::kEntries;
    double density = 0.01;
    std::uint64_t warm_up = 0;  // steps of a parameter in which density is no less than 1/4, 1/16, ... (dgc.cc)
    SentAs values = SentAs::kFloat32;
    Reduce reduce = Reduce::kGather;
  };
  explicit TopK(const Options& options) : options_(options) {}

  Exchange exchange(Work& work, Context& context) const override { return reduce_coded(*this, options_.reduce, work, context); }
  bool chooses_by_link() const override { return options_.reduce == Reduce::kAuto; }
  bool serves_owners() const override { return true; }

 private:
  std::uint8_t wire_id() const override { return options_.wire_id; }
  std::uint8_t wire_version() const override { return kWireVersion; }
  std::size_t most_bytes(const Piece& piece) const override;
  std::size_t room_bytes(const Piece& piece, std::size_t codes) const override;
  std::size_t encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                           std::span<std::byte> code, std::span<std::byte> room) const override;
  float check(std::span<const std::byte> code, const Piece& piece) const override;
  void decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
              std::span<std::byte> room) const override;
  void decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& piece, float weight, std::span<float> values,
                  std::span<std::byte> room) const override;

  std::size_t kept(const Piece& piece) const;
  EntriesCode entries(const Piece& piece) const { return {kept(piece), piece.elements(), options_.values}; }

  Options options_;
};

}  // namespace thinwire
