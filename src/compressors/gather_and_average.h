// The strategy of gather-only compressors: every worker's message goes to every worker, who decodes them in rank order
// and averages. One round; a worker receives (W-1) messages.
//
// A message: 8 bytes of header (wire id, wire version, flags, 0, number of elements as u32), a bitmap of the pieces in
// which this worker has any gradient (a bit a piece, least significant first), then the pieces one behind the other, each
// of a length that follows from its number of elements. Flag 1: this worker's bucket is not finite; pieces are then void.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/exchange.h"
#include "core/work.h"
#include "kernels/statistics.h"

namespace thinwire {

// How one piece is encoded; what a gather-only compressor has to supply.
class PieceCodec {
 public:
  virtual ~PieceCodec() = default;
  virtual std::uint8_t wire_id() const = 0;
  virtual std::uint8_t wire_version() const = 0;

  // The length of a piece's code, the same on every worker.
  virtual std::size_t encoded_bytes(std::size_t elements) const = 0;

  // Encodes piece.values(), whose magnitudes are given and finite. With a residual, leaves value minus decode in it;
  // without, may use values() as it likes.
  virtual void encode(Piece& piece, const kernels::Magnitudes& magnitudes, std::span<std::byte> encoded) const = 0;

  // Throws PayloadError if decode() could not decode the code to finite values.
  virtual void check(std::span<const std::byte> encoded, std::size_t elements) const = 0;

  // mean <- weight * decoded, or with `add` mean <- mean + weight * decoded. Pre: check() passed.
  virtual void decode(std::span<const std::byte> encoded, float weight, bool add, std::span<float> mean) const = 0;
};

// Bytes of a whole message.
std::size_t message_bytes(const PieceCodec& codec, const Work& work);

Exchange gather_and_average(const PieceCodec& codec, Work& work, Context& context);

}  // namespace thinwire
