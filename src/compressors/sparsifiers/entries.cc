#include "compressors/sparsifiers/entries.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "core/bytes.h"
#include "kernels/half.h"
#include "thinwire/errors.h"

namespace thinwire {

std::uint16_t finite_bf16_of(float value) {
  const std::uint16_t half = kernels::bf16_of(value);
  return (half & 0x7FFF) == 0x7F80 ? static_cast<std::uint16_t>(half - 1) : half;
}

SpecParameter values_parameter() {
  return choice("values", {"fp32", "bf16"}, "what values are sent as; the residual keeps what rounding loses");
}

SentAs sent_as(const SpecValues& values) { return values.choice("values") == "bf16" ? SentAs::kBfloat16 : SentAs::kFloat32; }

double value_bits(SentAs sent) { return sent == SentAs::kBfloat16 ? 16 : 32; }

double entry_bits(double share, SentAs sent) { return share * (value_bits(sent) + 2 - std::log2(share)); }

void EntriesCode::write(std::span<const float> values, std::span<const std::uint16_t> places, std::span<std::byte> code) const {
  ByteWriter writer(code);
  for (const std::uint16_t place : places) {
    if (sent_ == SentAs::kBfloat16)
      writer.write(finite_bf16_of(values[place]));
    else
      writer.write(values[place]);
  }
  places_.write(places, writer.take(writer.left()));
}

float EntriesCode::value(std::span<const std::byte> code, std::size_t j) const {
  if (sent_ == SentAs::kBfloat16) {
    std::uint16_t half;
    std::memcpy(&half, code.data() + j * sizeof half, sizeof half);
    return kernels::value_of_bf16(half);
  }
  float value;
  std::memcpy(&value, code.data() + j * sizeof value, sizeof value);
  return value;
}

std::optional<float> EntriesCode::check(std::span<const std::byte> code, const char* name) const {
  const bool has_places = places_.check(code.subspan(values_bytes()));
  float largest = 0;
  for (std::size_t j = 0; j < count_; ++j) {
    const float magnitude = std::abs(value(code, j));
    if (!std::isfinite(magnitude))
      throw PayloadError(std::string("a chunk of ") + name + " has a value that is not finite, the one numbered " + std::to_string(j));
    largest = std::max(largest, magnitude);
  }
  if (has_places) return largest;
  if (largest > 0) throw PayloadError(std::string("a chunk of ") + name + " has values, and no places for them");
  return std::nullopt;
}

void EntriesCode::add(std::span<const std::byte> code, float weight, std::span<float> values) const {
  places_.read(code.subspan(values_bytes()), [&](std::size_t j, std::size_t place) { values[place] += weight * value(code, j); });
}

}  // namespace thinwire
