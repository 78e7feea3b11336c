#include "compressors/quantizers/float_codec.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/half.h"
#include "kernels/rows.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

std::span<std::uint16_t> halves_in(std::span<std::byte> room, std::size_t count) {
  return {reinterpret_cast<std::uint16_t*>(room.data()), count};
}

std::span<float> floats_in(std::span<std::byte> room, std::size_t count) { return {reinterpret_cast<float*>(room.data()), count}; }

// From here on values are rounded to infinity.
float limit_of(ElementType type) {
  switch (type) {
    case ElementType::kBfloat16:
      return 0x1.ffp127f;
    case ElementType::kFloat16:
      return 65520;
    default:
      return std::numeric_limits<float>::infinity();
  }
}

}  // namespace

std::size_t FloatCodec::room_bytes(const Piece& piece, std::size_t /*codes*/) const {
  return piece.elements() * (sizeof(float) + (type_ == ElementType::kFloat32 ? 0 : sizeof(std::uint16_t)));
}

bool FloatCodec::can_encode(const kernels::Magnitudes& magnitudes) const { return magnitudes.largest < limit_of(type_); }

// A code lies where its message puts it, not where floats may lie.
std::size_t FloatCodec::encode_piece(const Piece& piece, Pass /*pass*/, std::span<float> values,
                                     const kernels::Magnitudes& /*magnitudes*/, std::span<std::byte> code,
                                     std::span<std::byte> room) const {
  if (type_ == ElementType::kFloat32) {
    std::ranges::copy(std::as_bytes(values), code.begin());
    return code.size();
  }
  const auto halves = halves_in(room, piece.elements());
  type_ == ElementType::kBfloat16 ? kernels::to_bf16(values, 1, halves) : kernels::to_fp16(values, 1, halves);
  std::ranges::copy(std::as_bytes(halves), code.begin());
  return code.size();
}

float FloatCodec::check(std::span<const std::byte> code, const Piece& /*piece*/) const {
  constexpr std::size_t kTile = 1024;
  alignas(float) std::array<std::byte, kTile * (sizeof(float) + sizeof(std::uint16_t))> room;
  std::array<float, kTile> values;
  float largest = 0;
  for (std::size_t first = 0; first < code.size(); first += kTile * element_bytes(type_)) {
    const auto tile = code.subspan(first, std::min(kTile * element_bytes(type_), code.size() - first));
    const auto some = std::span(values).first(tile.size() / element_bytes(type_));
    read(tile, some, room);
    const kernels::Scan scan = kernels::scan(some);
    if (!scan.finite) throw PayloadError("a message of floats that is said to be finite holds a NaN or an infinity");
    largest = std::max(largest, scan.largest);
  }
  return largest;
}

void FloatCodec::read(std::span<const std::byte> code, std::span<float> values, std::span<std::byte> room) const {
  if (code.empty()) return;
  if (type_ == ElementType::kFloat32) {
    std::memcpy(values.data(), code.data(), code.size());
    return;
  }
  const auto halves = halves_in(room, values.size());
  std::memcpy(halves.data(), code.data(), code.size());
  type_ == ElementType::kBfloat16 ? kernels::from_bf16(halves, 1, values) : kernels::from_fp16(halves, 1, values);
}

void FloatCodec::decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
                        std::span<std::byte> room) const {
  const auto decoded = add ? floats_in(room, piece.elements()) : values;
  read(code, decoded, room.subspan(piece.elements() * sizeof(float)));
  if (add)
    kernels::add_scaled(values, decoded, weight);
  else
    kernels::multiply(values, weight);
}

void FloatCodec::decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& piece, float weight, std::span<float> values,
                            std::span<std::byte> room) const {
  for (std::size_t i = 0; i < codes.size(); ++i) decode(codes[i], piece, 1, i > 0, values, room);
  kernels::multiply(values, weight);
}

}  // namespace thinwire
