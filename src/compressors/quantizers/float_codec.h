// Floats as codes that go from worker to worker, for "none", "bf16" and "fp16" where owners keep means: what is sent is not summed on its
// way, and so neither divided before nor rounded after.
//
// A code: the values, as float32, bfloat16 or binary16. They are summed as floats, in rank order, and the sum is divided.
// Memory passes: encode copies the values, decode reads every worker's once.
#pragma once

#include "compressors/shared/codec.h"
#include "thinwire/collective.h"

namespace thinwire {

class FloatCodec : public PieceCodec {
 public:
  static constexpr std::uint8_t kWireVersion = 1;

  // type: kFloat32, kBfloat16 or kFloat16.
  FloatCodec(std::uint8_t wire_id, ElementType type) : wire_id_(wire_id), type_(type) {}

  std::uint8_t wire_id() const override { return wire_id_; }
  std::uint8_t wire_version() const override { return kWireVersion; }
  std::size_t most_bytes(const Piece& piece) const override { return piece.elements() * element_bytes(type_); }
  std::size_t room_bytes(const Piece& piece, std::size_t codes) const override;
  float check(std::span<const std::byte> code, const Piece& piece) const override;
  void decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
              std::span<std::byte> room) const override;
  void decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& piece, float weight, std::span<float> values,
                  std::span<std::byte> room) const override;

 private:
  bool can_encode(const kernels::Magnitudes& magnitudes) const override;
  std::size_t encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                           std::span<std::byte> code, std::span<std::byte> room) const override;
  // values <- the code's. room: for as many halves.
  void read(std::span<const std::byte> code, std::span<float> values, std::span<std::byte> room) const;

  std::uint8_t wire_id_;
  ElementType type_;
};

}  // namespace thinwire
