// Whole numbers of few bits as fields of 32-bit words that add up: every field is wide enough for the sum of all workers',
// so no carry crosses. Sums of words may go through signed additions: they never overflow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire::kernels {

// A field of every word: `width` bits (1 to 32) from bit `shift` on, for numbers in [-limit, limit], where 2 limit < 2^width.
struct Field {
  int shift = 0;
  int width = 0;
  std::int32_t limit = 0;

  std::uint32_t mask() const { return width == 32 ? ~std::uint32_t{0} : (std::uint32_t{1} << width) - 1; }
  // What makes a field's sums not negative, so that they borrow nothing from their neighbours.
  std::uint32_t bias() const { return static_cast<std::uint32_t>(limit) << shift; }
};

// words[i] <- words[i] + (levels[i] << shift), in two's complement.
void add_field(std::span<const std::int32_t> levels, const Field& field, std::span<std::int32_t> words);

// levels[i] <- the field's number in words[i], to which `biases`, the sum of all the word's fields' bias(), is added first.
// What is beyond the limit, in words that somebody has spoilt, is the limit.
void take_field(std::span<const std::int32_t> words, const Field& field, std::uint32_t biases, std::span<std::int32_t> levels);

// values[i] <- levels[i] * step; or values[i] - levels[i] * step.
void scale_levels(std::span<const std::int32_t> levels, float step, std::span<float> values);
void subtract_levels(std::span<const std::int32_t> levels, float step, std::span<float> values);

// values[i] <- (levels[i] * step) * norms[i].
void scale_levels(std::span<const std::int32_t> levels, float step, std::span<const float> norms, std::span<float> values);
// levels[i] <- (values[i] * inverse_step) * inverse_norms[i], clamped to [-limit, limit] and rounded to the nearest whole
// number; of what is no number the limit. Pre: limit < 2^22.
void round_to_levels(std::span<const float> values, float inverse_step, std::span<const float> inverse_norms, std::int32_t limit,
                     std::span<std::int32_t> levels);

}  // namespace thinwire::kernels
