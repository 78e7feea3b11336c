#include "compressors/casq/casq_chunk.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::uint16_t kLargestBfloat16 = 0x7F7F;  // finite

// To nearest, ties to even; what would become infinite becomes the largest finite number.
std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  const std::uint32_t rounded = (magnitude + 0x7FFF + (magnitude >> 16 & 1)) >> 16;
  return static_cast<std::uint16_t>(sign | std::min<std::uint32_t>(rounded, kLargestBfloat16));
}

float from_bfloat16(std::uint16_t half) { return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16); }

}  // namespace

CasqChunk::CasqChunk(const CasqOptions& options, int bits, std::size_t elements)
    : elements_(elements),
      bits_(bits),
      entries_((std::size_t{1} << bits) + static_cast<std::size_t>(options.table * static_cast<double>(elements))),
      entry_bytes_(options.precision == Precision::kBfloat16 ? sizeof(std::uint16_t) : sizeof(float)),
      blocks_(options.scope == Scope::kBlock ? (elements + kBlockElements - 1) / kBlockElements : 0) {}

std::size_t CasqChunk::bytes() const {
  return counts_bytes() + entries_ * entry_bytes_ + blocks_ * sizeof(std::uint16_t) + kernels::packed_bytes(elements_, bits_);
}

void CasqChunk::write_table(std::span<float> table, std::span<std::byte> bytes) const {
  if (entry_bytes_ == sizeof(float)) {
    std::memcpy(bytes.data(), table.data(), table.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::uint16_t half = to_bfloat16(table[i]);
    std::memcpy(bytes.data() + i * sizeof half, &half, sizeof half);
    table[i] = from_bfloat16(half);
  }
}

void CasqChunk::read_table(std::span<const std::byte> bytes, std::span<float> table) const {
  if (entry_bytes_ == sizeof(float)) {
    std::memcpy(table.data(), bytes.data(), table.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < table.size(); ++i) {
    std::uint16_t half;
    std::memcpy(&half, bytes.data() + i * sizeof half, sizeof half);
    table[i] = from_bfloat16(half);
  }
}

std::uint16_t CasqChunk::rounded_scale(float scale) { return to_bfloat16(scale); }
float CasqChunk::scale_of(std::uint16_t rounded) { return from_bfloat16(rounded); }

float CasqChunk::scale(std::span<const std::byte> scales, std::size_t block) {
  std::uint16_t rounded;
  std::memcpy(&rounded, scales.data() + block * sizeof rounded, sizeof rounded);
  return scale_of(rounded);
}

float CasqChunk::check(std::span<const std::byte> encoded) const {
  const auto found = parts(encoded);
  float largest_entry = 0, largest_scale = blocks_ > 0 ? 0.0f : 1.0f;
  for (std::size_t i = 0; i < entries_; ++i) {
    float entry;
    read_table(found.table.subspan(i * entry_bytes_, entry_bytes_), std::span(&entry, 1));
    if (!std::isfinite(entry)) throw PayloadError("a chunk of casq holds a cluster mean that is not finite");
    largest_entry = std::max(largest_entry, std::abs(entry));
  }
  for (std::size_t b = 0; b < blocks_; ++b) {
    const float found_scale = scale(found.scales, b);
    if (!std::isfinite(found_scale) || std::signbit(found_scale))
      throw PayloadError("a chunk of casq holds a block scale that is negative or not finite");
    largest_scale = std::max(largest_scale, found_scale);
  }
  return std::min(largest_entry * largest_scale, std::numeric_limits<float>::max());  // as scaled() has it
}

}  // namespace thinwire
