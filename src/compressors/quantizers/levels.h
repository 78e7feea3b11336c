// Values rounded to a few levels times a norm, which the entries of a bucket share: what most quantizers are. Their rows say which levels
// and which norm.
//
// Symbols: a bucket v of `bucket` entries, its unit N, the levels l_0 < l_1 < ... For each bucket N is sent, such that l times N is what
// level l decodes to; for each entry the number of its level, in as many bits as the numbers of all levels need.
//
// - Rounding at random: v_i / N lies between two levels and is rounded to one of them, so that the expectation is v_i. Random numbers
//   depend on (seed, step, parameter, element, worker) alone. What lies beyond the outermost level becomes that.
// - Rounding to the nearest: what lies in the middle becomes the neighbour with an even number, counted from 0 outwards, as IEEE floats
//   are rounded; without a level 0 the lower one.
//
// - Where levels are fitted, every chunk has its own, and they travel with it.
//
// A code: the units, a float each (Norm::kPowerOfTwo: a byte, the exponent plus 127), the levels if they are fitted, a float each, then the
// packed numbers (kernels/codes.h).
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compressors/shared/compressor.h"
#include "compressors/shared/entropy_codec.h"
#include "compressors/shared/reduce_coded.h"
#include "core/divide.h"
#include "kernels/codes.h"

namespace thinwire {

// What the outermost level decodes to.
enum class Norm : std::uint8_t {
  kLargest,        // the largest magnitude
  kEuclidean,      // the square root of the sum of squares
  kMeanMagnitude,  // the mean of the magnitudes
  kPowerOfTwo,     // N is 2^(exponent of the largest magnitude - that of the outermost level): larger values are cut off
};
enum class Rounding : std::uint8_t { kNearest, kRandom };

// Finds levels for a chunk's values, in units: writes levels, ascending from -1 to 1, and returns how many, at least 2.
using LevelFit = std::size_t (*)(std::span<const float> values, std::span<float> levels);

class Levels : public Compressor, protected NumberedCodec {
 public:
  struct Options {
    std::string name;
    std::uint8_t wire_id = 0;
    std::vector<float> levels;                         // ascending, 2 to 256 of them; the last one is the largest in magnitude
    std::optional<kernels::FewBitFloats> floats = {};  // if that is what they are: a shorter way to them
    LevelFit fit = nullptr;                            // with Rounding::kRandom and Norm::kLargest; then levels are as many 1 as it may find
    Norm norm = Norm::kLargest;
    std::size_t bucket = kChunkElements;  // entries that share a unit
    Rounding rounding = Rounding::kNearest;
    bool shrinks = false;  // fitted levels are sent times E/(E + V), E the values' energy and V their variance by rounding
    double clip = 0;  // values beyond so many standard deviations of their bucket are cut off; 0: none
    Coding coding = Coding::kFixed;
    Reduce reduce = Reduce::kGather;
  };
  explicit Levels(const Options& options);

  static constexpr std::uint8_t kWireVersion = 1;
  Exchange exchange(Work& work, Context& context) const override {
    if (options_.coding != Coding::kFixed) return reduce_coded(coded_, options_.reduce, work, context);
    return reduce_coded(*this, options_.reduce, work, context);
  }
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& /*parameter*/, std::uint64_t /*chunk*/) const override { return memory_of(options_.coding); }
  bool chooses_by_link() const override { return options_.reduce == Reduce::kAuto; }
  bool serves_owners() const override { return true; }
  std::uint64_t fewest_chunk_elements() const override { return thinwire::fewest_chunk_elements(options_.reduce, chunk_of_buckets(options_.bucket, options_.coding)); }

 protected:
  std::uint8_t wire_id() const override { return options_.wire_id; }
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
    return {all_unit_bytes(piece.elements()) + level_bytes(), piece.elements(), bits_};
  }

 private:
  std::size_t buckets(std::size_t elements) const { return divided_up(elements, options_.bucket); }
  std::size_t all_unit_bytes(std::size_t elements) const { return buckets(elements) * unit_bytes(); }
  std::size_t level_bytes() const { return options_.fit ? table_.size() * sizeof(float) : 0; }
  std::size_t unit_bytes() const { return options_.norm == Norm::kPowerOfTwo ? 1 : sizeof(float); }
  void find_norms(std::span<float> values, float largest, std::span<float> norms) const;
  float unit_of(std::span<const float> bucket, float norm) const;
  void write_unit(float unit, std::span<std::byte> units, std::size_t bucket) const;
  float read_unit(std::span<const std::byte> units, std::size_t bucket) const;
  struct Parts {
    std::span<const std::byte> units, levels, packed;
  };
  Parts parts(std::span<const std::byte> code, std::size_t elements) const;
  bool is_even() const { return even_.inverse_step > 0; }
  bool is_whole() const { return options_.floats && *options_.floats == kernels::whole_numbers(options_.floats->count); }
  // What numbers mean, in units.
  using Table = std::array<float, std::size_t{1} << kernels::kMaxCodeBits>;
  std::span<const float> levels_in(std::span<const std::byte> sent, Table& room) const;
  void assign_randomly(std::span<const float> values, std::span<const float> levels, float inverse_unit, const RandomSequence& random,
                       std::span<std::byte> packed) const;
  static void write_entries(std::span<const float> levels, float unit, float weight, std::span<float> entries);

  Options options_;
  EntropyCodec coded_{*this, options_.coding};
  int bits_;
  float outermost_;
  std::vector<float> table_;       // levels, the last one repeated up to 2^bits
  std::vector<float> thresholds_;  // between them, for rounding to the nearest; infinity behind the last one
  kernels::EvenLevels even_;       // of a unit of 1, if that is what they are and all entries share a unit; else its inverse_step is 0
};

}  // namespace thinwire
