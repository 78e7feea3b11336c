// How CASQ's code of a chunk is laid out; docs/wire_format.md is the same for people.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compressors/casq/casq_options.h"
#include "core/work.h"
#include "kernels/codes.h"

namespace thinwire {

class CasqChunk {
 public:
  static constexpr std::size_t kBlockElements = 512;
  static constexpr std::size_t kMostClusters = std::size_t{1} << kernels::kMaxCodeBits;

  CasqChunk(const CasqOptions& options, int bits, std::size_t elements);

  std::size_t elements() const { return elements_; }
  int bits() const { return bits_; }
  std::size_t clusters() const { return std::size_t{1} << bits_; }
  bool has_tables() const { return entries_ > clusters(); }
  std::size_t entries() const { return entries_; }  // of all clusters' buckets: one each, and the table's
  std::size_t blocks() const { return blocks_; }    // that have a scale of their own; 0 with Scope::kParameter
  std::size_t bytes() const;

  template <class Byte>
  struct Parts {
    std::span<Byte> counts;  // buckets of each cluster, u16, if there are tables
    std::span<Byte> table;   // what each bucket decodes to, cluster by cluster
    std::span<Byte> scales;  // of the blocks, bfloat16
    std::span<Byte> codes;   // packed
  };
  template <class Byte>
  Parts<Byte> parts(std::span<Byte> encoded) const {
    Parts<Byte> result;
    const auto take = [&encoded](std::size_t bytes) {
      const auto taken = encoded.first(bytes);
      encoded = encoded.subspan(bytes);
      return taken;
    };
    result.counts = take(counts_bytes());
    result.table = take(entries_ * entry_bytes_);
    result.scales = take(blocks_ * sizeof(std::uint16_t));
    result.codes = encoded;
    return result;
  }

  // A table's floats to and from bytes: entries() of them, or the first so many. What is written is afterwards in `table` as
  // it will be read.
  void write_table(std::span<float> table, std::span<std::byte> bytes) const;
  void read_table(std::span<const std::byte> bytes, std::span<float> table) const;

  // Scales as bfloat16 and back.
  static std::uint16_t rounded_scale(float scale);
  static float scale_of(std::uint16_t rounded);
  static float scale(std::span<const std::byte> scales, std::size_t block);

  // Throws PayloadError if the table or a scale is not finite, or a scale negative. Returns an upper bound of what is decoded.
  float check(std::span<const std::byte> encoded) const;

 private:
  std::size_t counts_bytes() const { return has_tables() ? clusters() * sizeof(std::uint16_t) : 0; }

  std::size_t elements_;
  int bits_;
  std::size_t entries_;
  std::size_t entry_bytes_;
  std::size_t blocks_;
};

}  // namespace thinwire
