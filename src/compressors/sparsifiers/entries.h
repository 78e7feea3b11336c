// Some entries of a chunk as bytes: their values, float32 or bfloat16, in the order of their places; then their places (places.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "compressors/shared/row.h"
#include "compressors/sparsifiers/places.h"

namespace thinwire {

enum class SentAs : std::uint8_t { kFloat32, kBfloat16 };

// The common parameter `values` of sparsifiers, and what a spec says.
SpecParameter values_parameter();
SentAs sent_as(const SpecValues& values);
double value_bits(SentAs sent);
// What a share of a long chunk's entries takes at most, for each entry of the chunk.
double entry_bits(double share, SentAs sent);

// Rounded to nearest even; beyond the largest finite one to that, as the residual keeps the difference.
std::uint16_t finite_bf16_of(float value);

class EntriesCode {
 public:
  // Of `count` entries among `elements`.
  EntriesCode(std::size_t count, std::size_t elements, SentAs sent) : count_(count), sent_(sent), places_(count, elements) {}

  std::size_t bytes() const { return values_bytes() + places_.bytes(); }
  // Pre: places ascend, `count` of them; code has bytes().
  void write(std::span<const float> values, std::span<const std::uint16_t> places, std::span<std::byte> code) const;
  // Returns the largest magnitude; nothing for zeros alone, which are no entries at all. Throws PayloadError for what write() would not
  // have written, with the name of the compressor. Pre: code has bytes().
  std::optional<float> check(std::span<const std::byte> code, const char* name) const;
  // values <- values + weight * entries. Pre: check() passed.
  void add(std::span<const std::byte> code, float weight, std::span<float> values) const;

 private:
  std::size_t values_bytes() const { return count_ * (sent_ == SentAs::kBfloat16 ? sizeof(std::uint16_t) : sizeof(float)); }
  float value(std::span<const std::byte> code, std::size_t j) const;

  std::size_t count_;
  SentAs sent_;
  PlaceCode places_;
};

}  // namespace thinwire
