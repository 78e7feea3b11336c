// Numbers of levels in as many bits as they are worth: what `coding=` makes of a code of fixed length.
//
// A code: nothing, if all is zero; else what stands before the packed numbers in the code of fixed length (units, scales), a byte, and
//   0: the packed numbers, where nothing else is shorter;
//   1: coding=entropy: by their frequencies in the chunk, frequency_code.h;
//   2, 3: coding=elias: levels around a number of theirs that is 0, in Elias's code, elias.h: sparse and dense, the shorter of the two.
//
// Passes over memory: none of its own, but over codes in the cache.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>

#include "compressors/shared/codec.h"
#include "compressors/shared/foreseen_length.h"
#include "compressors/shared/row.h"

namespace thinwire {

// A codec whose codes are of a fixed length, and end in packed numbers (kernels/codes.h), one for each entry of the piece or more.
class NumberedCodec : public PieceCodec {
 protected:
  struct Numbers {
    std::size_t begin = 0, count = 0;  // where in the code, and how many
    int bits = 0;
  };
  virtual Numbers numbers(const Piece& piece) const = 0;

 private:
  friend class EntropyCodec;
};

enum class Coding : std::uint8_t { kFixed, kEntropy, kElias };

// Pieces must have ForeseenLength for a memory.
class EntropyCodec : public PieceCodec {
 public:
  // `fixed` must outlive it. With kElias its numbers are 2^(bits - 1) - 1 + l of levels l.
  EntropyCodec(const NumberedCodec& fixed, Coding coding) : fixed_(fixed), coding_(coding) {}

  std::uint8_t wire_id() const override { return fixed_.wire_id(); }
  std::uint8_t wire_version() const override { return fixed_.wire_version(); }
  std::size_t most_bytes(const Piece& piece) const override { return fixed_.most_bytes(piece) + 1; }
  bool has_fixed_length() const override { return false; }
  std::size_t usual_bytes(const Piece& piece, Pass pass) const override {
    return ForeseenLength::usual_bytes(piece, pass, 0, most_bytes(piece));  // a first step's messages take a round more
  }
  void foresee(std::span<const Piece* const> pieces, Pass pass, double bytes_an_element) const override {
    ForeseenLength::foresee(pieces, pass, bytes_an_element);
  }
  std::size_t room_bytes(const Piece& piece, std::size_t codes) const override;
  void decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
              std::span<std::byte> room) const override;
  void decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& piece, float weight, std::span<float> values,
                  std::span<std::byte> room) const override;

 private:
  bool can_encode(const kernels::Magnitudes& magnitudes) const override { return fixed_.can_encode(magnitudes); }
  std::size_t encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                           std::span<std::byte> code, std::span<std::byte> room) const override;
  // The code of fixed length that `code` was made of, checked.
  std::span<const std::byte> restore(std::span<const std::byte> code, const Piece& piece, std::span<std::byte> fixed,
                                     std::span<std::byte> room) const;

  const NumberedCodec& fixed_;
  Coding coding_;
};

// The common parameter `coding` of such codecs' rows, and what a compressor does with it.
SpecParameter coding();
Coding coding_of(const SpecValues& values);
// For Compressor::fewest_chunk_elements(): no fewer than share a unit; and none of chunks whose codes have tables of their own is short.
inline std::uint64_t chunk_of_buckets(std::size_t bucket, Coding coding) {
  return coding == Coding::kFixed ? std::clamp<std::uint64_t>(std::bit_ceil(bucket), kFewestChunkElements, kChunkElements) : kChunkElements;
}

inline std::unique_ptr<CompressorMemory> memory_of(Coding coding) {
  return coding == Coding::kFixed ? nullptr : std::make_unique<ForeseenLength>();
}

}  // namespace thinwire
