// How a gather-only compressor encodes one piece; the strategies (gather_and_average, scatter_reduce) do the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/work.h"
#include "kernels/statistics.h"

namespace thinwire {

class PieceCodec {
 public:
  virtual ~PieceCodec() = default;
  virtual std::uint8_t wire_id() const = 0;
  virtual std::uint8_t wire_version() const = 0;

  // The length of a piece's code: known before it is encoded, and the same on every worker.
  virtual std::size_t encoded_bytes(const Piece& piece) const = 0;

  // Encodes piece.values(), whose magnitudes are given and finite. With a residual, leaves value minus decode in it;
  // without, may use values() as it likes.
  virtual void encode(Piece& piece, const kernels::Magnitudes& magnitudes, std::span<std::byte> encoded) const = 0;

  // Throws PayloadError if decode() could not decode a piece's code to finite values.
  virtual void check(std::span<const std::byte> encoded, const Piece& piece) const = 0;

  // mean <- weight * decoded, or with `add` mean <- mean + weight * decoded; `mean` has as many elements as the piece.
  // Pre: check() passed.
  virtual void decode(std::span<const std::byte> encoded, const Piece& piece, float weight, bool add,
                      std::span<float> mean) const = 0;
};

}  // namespace thinwire
