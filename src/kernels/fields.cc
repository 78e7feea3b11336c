#include "kernels/fields.h"

#include <algorithm>

// Whole numbers, and single operations on floats: the compiler's own vectors give the same bits.
namespace thinwire::kernels {

void add_field(std::span<const std::int32_t> levels, const Field& field, std::span<std::int32_t> words) {
  const int shift = field.shift;
  for (std::size_t i = 0; i < levels.size(); ++i)
    words[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(words[i]) + (static_cast<std::uint32_t>(levels[i]) << shift));
}

void take_field(std::span<const std::int32_t> words, const Field& field, std::uint32_t biases, std::span<std::int32_t> levels) {
  const int shift = field.shift;
  const std::uint32_t mask = field.mask(), largest = 2 * static_cast<std::uint32_t>(field.limit);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::uint32_t held = ((static_cast<std::uint32_t>(words[i]) + biases) >> shift) & mask;
    levels[i] = static_cast<std::int32_t>(std::min(held, largest)) - field.limit;
  }
}

void scale_levels(std::span<const std::int32_t> levels, float step, std::span<float> values) {
  for (std::size_t i = 0; i < levels.size(); ++i) values[i] = static_cast<float>(levels[i]) * step;
}

void subtract_levels(std::span<const std::int32_t> levels, float step, std::span<float> values) {
  for (std::size_t i = 0; i < levels.size(); ++i) values[i] -= static_cast<float>(levels[i]) * step;
}

void scale_levels(std::span<const std::int32_t> levels, float step, std::span<const float> norms, std::span<float> values) {
  for (std::size_t i = 0; i < levels.size(); ++i) values[i] = static_cast<float>(levels[i]) * step * norms[i];
}

void round_to_levels(std::span<const float> values, float inverse_step, std::span<const float> inverse_norms, std::int32_t limit,
                     std::span<std::int32_t> levels) {
  constexpr float kRound = 12582912;  // 1.5 * 2^23: its neighbours are 1 apart
  const auto end = static_cast<float>(limit);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float steps = values[i] * inverse_step * inverse_norms[i];
    const float clamped = std::max(std::min(end, steps), -end);
    levels[i] = static_cast<std::int32_t>((clamped + kRound) - kRound);
  }
}

}  // namespace thinwire::kernels
