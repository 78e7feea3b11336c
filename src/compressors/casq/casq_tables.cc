#include "compressors/casq/casq_tables.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>

#include "compressors/casq/casq_buckets.h"
#include "core/scratch.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

using Counts = std::array<std::uint16_t, CasqChunk::kMostClusters>;
using Statistics = std::array<ClusterStatistics, CasqChunk::kMostClusters>;

template <class Byte>
std::span<const std::uint8_t> unpacked(const CasqChunk& chunk, const CasqChunk::Parts<Byte>& parts, const TableRoom& room) {
  kernels::unpack(parts.codes, chunk.bits(), room.codes);
  return room.codes;
}

template <class Byte>
std::span<const std::uint16_t> read_counts(const CasqChunk& chunk, const CasqChunk::Parts<Byte>& parts, Counts& counts) {
  std::memcpy(counts.data(), parts.counts.data(), parts.counts.size());
  return std::span(counts).first(chunk.clusters());
}

// The scale of an entry's block.
template <class Byte>
float scale_at(const CasqChunk::Parts<Byte>& parts, std::size_t entry) {
  return parts.scales.empty() ? 1 : CasqChunk::scale(parts.scales, entry / CasqChunk::kBlockElements);
}

// Bits of a cluster's values, told apart by sign, octave and sixteenth of it.
void measure_entropy(std::span<const float> values, std::span<const std::uint8_t> codes, std::span<std::uint32_t> bins,
                     std::span<ClusterStatistics> clusters) {
  constexpr int kBinShift = 19, kBinBits = 13;
  for (std::size_t i = 0; i < values.size(); ++i)
    bins[i] = static_cast<std::uint32_t>(codes[i]) << kBinBits | std::bit_cast<std::uint32_t>(values[i]) >> kBinShift;
  std::sort(bins.begin(), bins.end());
  for (std::size_t begin = 0, end; begin < bins.size(); begin = end) {
    end = begin;
    while (end < bins.size() && bins[end] == bins[begin]) ++end;
    ClusterStatistics& cluster = clusters[bins[begin] >> kBinBits];
    const double share = static_cast<double>(end - begin) / cluster.entries;
    cluster.entropy -= share * std::log2(share);
  }
}

// Without the entropies.
void measure_clusters(std::span<const float> values, std::span<const std::uint8_t> codes, std::span<const float> centres,
                      const CasqChunk::Parts<std::byte>& parts, std::span<ClusterStatistics> clusters) {
  for (std::size_t c = 0; c < centres.size(); ++c) clusters[c].centre = static_cast<double>(centres[c]);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ClusterStatistics& cluster = clusters[codes[i]];
    const double distance = static_cast<double>(values[i]) - cluster.centre * static_cast<double>(scale_at(parts, i));
    cluster.entries += 1;
    cluster.variance += distance * distance;
  }
  for (ClusterStatistics& cluster : clusters)
    if (cluster.entries > 0) cluster.variance /= cluster.entries;
}

}  // namespace

std::size_t TableRoom::bytes(const CasqChunk& chunk) {
  return chunk.entries() * (2 * sizeof(double) + sizeof(float)) + chunk.elements() * (sizeof(std::uint32_t) + sizeof(std::uint8_t));
}

TableRoom::TableRoom(const CasqChunk& chunk, std::span<std::byte> room)
    : sums(carve<double>(room, chunk.entries())), weights(carve<double>(room, chunk.entries())),
      table(carve<float>(room, chunk.entries())), bins(carve<std::uint32_t>(room, chunk.elements())),
      codes(carve<std::uint8_t>(room, chunk.elements())) {}

float scaled(float entry, float scale) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  return std::clamp(entry * scale, -kLargest, kLargest);
}

void write_tables(const CasqChunk& chunk, const CasqOptions& options, std::span<const float> values,
                  std::span<const float> centres, const CasqChunk::Parts<std::byte>& parts, const TableRoom& room) {
  const auto codes = unpacked(chunk, parts, room);
  Statistics room_for_statistics{};
  const auto clusters = std::span(room_for_statistics).first(centres.size());
  measure_clusters(values, codes, centres, parts, clusters);
  const bool by_entropy = options.allocate != Allocation::kOptimal && options.allocate != Allocation::kDensity;
  if (by_entropy) measure_entropy(values, codes, room.bins, clusters);
  Counts room_for_counts;
  const auto counts = std::span(room_for_counts).first(centres.size());
  allocate_buckets(clusters, chunk.entries(), options.allocate, options.assign, counts);
  std::memcpy(parts.counts.data(), counts.data(), parts.counts.size());

  std::ranges::fill(room.sums, 0.0);
  std::ranges::fill(room.weights, 0.0);
  BucketWalk walk(codes, counts, options.assign);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t bucket = walk.next(codes[i]);
    const auto scale = static_cast<double>(scale_at(parts, i));
    room.sums[bucket] += scale * static_cast<double>(values[i]);
    room.weights[bucket] += scale * scale;
  }
  for (std::size_t b = 0; b < room.table.size(); ++b)
    room.table[b] = room.weights[b] > 0 ? static_cast<float>(room.sums[b] / room.weights[b]) : 0.0f;
  chunk.write_table(room.table, parts.table);
}

void check_tables(const CasqChunk& chunk, const CasqChunk::Parts<const std::byte>& parts) {
  Counts room_for_counts;
  const auto counts = read_counts(chunk, parts, room_for_counts);
  const auto total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  if (total != chunk.entries() || std::ranges::count(counts, 0) > 0)
    throw PayloadError("a chunk of casq has clusters of " + std::to_string(total) + " buckets; it must be " +
                       std::to_string(chunk.entries()) + ", and one in each cluster");
}

void decode_tables(const CasqChunk& chunk, BucketAssignment assign, const CasqChunk::Parts<const std::byte>& parts,
                   float weight, bool add, std::span<float> mean, const TableRoom& room) {
  const auto codes = unpacked(chunk, parts, room);
  Counts room_for_counts;
  chunk.read_table(parts.table, room.table);
  BucketWalk walk(codes, read_counts(chunk, parts, room_for_counts), assign);
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const float entry = weight * scaled(room.table[walk.next(codes[i])], scale_at(parts, i));
    mean[i] = add ? mean[i] + entry : entry;
  }
}

}  // namespace thinwire
