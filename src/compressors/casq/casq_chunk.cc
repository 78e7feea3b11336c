#include "compressors/casq/casq_chunk.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/half.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr int kLargestBf16 = 0x7F7F;  // finite

// What would become infinite becomes the largest finite number.
std::uint16_t to_finite_bf16(float value) {
  const std::uint16_t half = kernels::bf16_of(value);
  return static_cast<std::uint16_t>((half & 0x8000) | std::min(half & 0x7FFF, kLargestBf16));
}

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
    const std::uint16_t half = to_finite_bf16(table[i]);
    std::memcpy(bytes.data() + i * sizeof half, &half, sizeof half);
    table[i] = kernels::value_of_bf16(half);
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
    table[i] = kernels::value_of_bf16(half);
  }
}

std::uint16_t CasqChunk::rounded_scale(float scale) { return to_finite_bf16(scale); }
float CasqChunk::scale_of(std::uint16_t rounded) { return kernels::value_of_bf16(rounded); }

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
