// CASQ's second half, the sketch: entries of a cluster share its buckets, and each bucket decodes to its own mean. Plain
// loops over entries; what is to be fast has no tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compressors/casq/casq_chunk.h"
#include "compressors/casq/casq_options.h"

namespace thinwire {

// Room to encode or decode a chunk with tables, in a thread's scratch.
struct TableRoom {
  static std::size_t bytes(const CasqChunk& chunk);
  // room: bytes(chunk), aligned to 64.
  TableRoom(const CasqChunk& chunk, std::span<std::byte> room);

  std::span<double> sums, weights;  // of each bucket
  std::span<float> table;
  std::span<std::uint32_t> bins;  // of each entry, to encode by entropy
  std::span<std::uint8_t> codes;  // of each entry
};

// Allocates the buckets and writes their numbers and means. Pre: chunk.has_tables(); codes and scales are written. centres:
// what the clusters would decode to without tables.
void write_tables(const CasqChunk& chunk, const CasqOptions& options, std::span<const float> values,
                  std::span<const float> centres, const CasqChunk::Parts<std::byte>& parts,
                  const TableRoom& room);

// Throws PayloadError if the numbers of buckets do not make up the table.
void check_tables(const CasqChunk& chunk, const CasqChunk::Parts<const std::byte>& parts);

// As Codec::decode.
void decode_tables(const CasqChunk& chunk, BucketAssignment assign, const CasqChunk::Parts<const std::byte>& parts,
                   float weight, bool add, std::span<float> mean, const TableRoom& room);

// A cluster's value times a block's scale. The product of a scale and a value that belongs to other blocks may leave the
// range of float.
float scaled(float entry, float scale);

}  // namespace thinwire
