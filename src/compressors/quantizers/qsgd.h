// QSGD: values rounded at random to a few evenly spaced levels, so that their expectation is exact.
//
// Source: Alistarh, Grubic, Li, Tomioka, Vojnovic: "QSGD: communication-efficient SGD via gradient quantization and
// encoding", NeurIPS 2017. Symbols: a bucket v of B entries (`bucket`), b bits an entry (`bits`), s = 2^(b-1) - 1 levels of
// each sign.
//
// 1. For each bucket the step D = |v|/s, with the Euclidean norm (norm=l2) as in the paper's theorem, or the largest
//    magnitude (norm=max) as in its experiments.
// 2. v_i / D is rounded to one of its two neighbours, so that the expectation is v_i / D. Random numbers depend on (seed,
//    step, parameter, element, worker) alone.
// 3. E|v' - v|^2 <= w |v|^2 with w = min(B/s^2, sqrt(B)/s) for norm=l2, min(B/(4 s^2), sqrt(B)/s) for norm=max.
//    feedback=on needs a contraction: what is decoded is divided by 1 + w, at no bits.
//
// reduce=gather, scatter: 32 bits a bucket and b bits an entry, each chunk rounded up to bytes; one gather, or a scatter and
// a gather. reduce=sum adds up inside all-reduce: workers agree on the largest |v| of each bucket (a max of 32 bits a bucket),
// so that levels are multiples of one step and their sums are whole numbers in [-W s, W s] for W workers. They travel as
// fields of f = bits of 2 W s, floor(32/f) in a word of 32 bits: with feedback 32 bits a chunk more tell whether anybody used it.
// reduce=auto takes gather or sum, whichever moves fewer bits.
//
// coding=elias: numbers of levels as the paper sends them, in Elias's code (shared/elias.h).
//
// Memory passes: encode reads the values twice and writes the residual once; decode writes the mean once.
#pragma once

#include "compressors/quantizers/summed_levels.h"
#include "compressors/shared/compressor.h"
#include "compressors/shared/entropy_codec.h"
#include "compressors/shared/reduce_coded.h"
#include "core/divide.h"
#include "kernels/codes.h"

namespace thinwire {

class Qsgd : public Compressor, private NumberedCodec, private SummedCode {
 public:
  static constexpr std::uint8_t kWireId = 17;
  static constexpr std::uint8_t kWireVersion = 2;

  static constexpr std::size_t kLeastBucket = 64;

  enum class Norm : std::uint8_t { kMax, kL2 };
  enum class Travel : std::uint8_t { kAuto, kGather, kScatter, kSum };
  struct Options {
    int bits = 4;              // 2 to 8
    std::size_t bucket = 512;  // a multiple of kLeastBucket, up to kChunkElements
    Norm norm = Norm::kMax;
    Travel travel = Travel::kAuto;
    bool feedback = false;
    Coding coding = Coding::kFixed;  // of what does not travel as sums
  };
  // Throws ArgumentError for a bucket of another length, and where what is coded would be summed.
  explicit Qsgd(const Options& options);

  Exchange exchange(Work& work, Context& context) const override;
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& /*parameter*/, std::uint64_t /*chunk*/) const override { return memory_of(options_.coding); }
  bool serves_owners() const override { return options_.travel != Travel::kSum; }
  std::uint64_t fewest_chunk_elements() const override {
    const bool has_owners = options_.travel == Travel::kScatter || options_.travel == Travel::kAuto;
    return has_owners ? chunk_of_buckets(options_.bucket, options_.coding) : kChunkElements;
  }

 private:
  std::uint8_t wire_id() const override { return kWireId; }
  std::uint8_t wire_version() const override { return kWireVersion; }
  std::size_t most_bytes(const Piece& piece) const override;
  std::size_t encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                           std::span<std::byte> code, std::span<std::byte> room) const override;
  float check(std::span<const std::byte> code, const Piece& piece) const override;
  std::size_t room_bytes(const Piece& piece, std::size_t codes) const override;
  void decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
              std::span<std::byte> room) const override;
  void decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& piece, float weight, std::span<float> values,
                  std::span<std::byte> room) const override;

  Numbers numbers(const Piece& piece) const override {
    return {buckets(piece.elements()) * sizeof(float), piece.elements(), options_.bits};
  }

  // Norms become steps once they are agreed on.
  std::int32_t levels() const override { return (1 << (options_.bits - 1)) - 1; }
  std::size_t entries(std::size_t elements) const override { return elements; }
  std::size_t norms(std::size_t elements) const override { return buckets(elements); }
  void measure(const Piece& piece, std::span<const float> values, std::span<float> norms, std::span<float> room) const override;
  float agreed(float norm) const override { return step(norm); }
  double largest_mean(float norm) const override { return static_cast<double>(norm); }
  void to_levels(const Piece& piece, std::span<const float> values, std::span<const float> steps, const LevelsToWrite& levels,
                 std::span<float> room) const override;
  void from_levels(const Piece& piece, const LevelsToRead& levels, std::span<const float> steps, float weight, bool subtract,
                   std::span<float> values, std::span<float> room) const override;

  bool sum_sends_less(int world_size) const;
  std::size_t buckets(std::size_t elements) const { return divided_up(elements, options_.bucket); }
  void find_norms(std::span<const float> values, std::span<float> norms) const;
  float step(float norm) const;
  float shrinkage(std::size_t elements) const;
  // Some neighbours of one bucket, from the piece's element `first` on; inverse_step is 0 where the step is 0 or no number.
  struct Tile {
    std::size_t first;
    std::span<const float> values;
    float inverse_step;
    std::span<const std::uint32_t> words;  // one for each: which way it is rounded
  };
  template <class Body>
  void for_each_tile(std::span<const float> values, std::span<const float> steps, RandomSequence random, const Body& body) const;
  // A bucket's packed levels in a code of so many elements, and what one is worth.
  kernels::CodedLevels levels_of(std::span<const std::byte> code, std::size_t bucket, std::size_t elements) const;

  Options options_;
  EntropyCodec coded_{*this, options_.coding};
};

}  // namespace thinwire
