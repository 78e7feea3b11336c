// Sixteen-bit floats: bf16 (8 exponent bits) and fp16 (IEEE binary16), held as uint16_t. Rounding is to nearest, ties to
// even; NaN stays NaN, infinities stay; too large becomes infinity; denormals are kept.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "kernels/statistics.h"

namespace thinwire::kernels {

// Of single values.
constexpr std::uint16_t bf16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;  // rounding could carry it into the sign
  return static_cast<std::uint16_t>((nan ? bits | 0x400000 : bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
constexpr float value_of_bf16(std::uint16_t half) { return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16); }

// Spans of equal length. half[i] <- round(scale * values[i]); values[i] <- half[i] * scale; and sums of halves, each
// computed in float and rounded once.
void to_bf16(std::span<const float> values, float scale, std::span<std::uint16_t> half);
void from_bf16(std::span<const std::uint16_t> half, float scale, std::span<float> values);
void add_bf16(std::span<const std::uint16_t> half, std::span<std::uint16_t> total);

void to_fp16(std::span<const float> values, float scale, std::span<std::uint16_t> half);
void from_fp16(std::span<const std::uint16_t> half, float scale, std::span<float> values);
void add_fp16(std::span<const std::uint16_t> half, std::span<std::uint16_t> total);

// values[i] -= half[i] * scale: what rounding lost, for residuals.
void subtract_bf16(std::span<const std::uint16_t> half, float scale, std::span<float> values);
void subtract_fp16(std::span<const std::uint16_t> half, float scale, std::span<float> values);

// What scan() would return for the halves' values.
Scan scan_bf16(std::span<const std::uint16_t> half);
Scan scan_fp16(std::span<const std::uint16_t> half);

}  // namespace thinwire::kernels
