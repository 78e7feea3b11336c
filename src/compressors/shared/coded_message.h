// The message of gather-only compressors: 12 bytes of header (wire id, wire version, flags, 0, number of elements as u32,
// checksum as u32), a bitmap of the pieces in which its sender has any gradient (a bit a piece, least significant first), then
// the pieces' codes one behind the other, each of a length that follows from its number of elements. Flag 1: the sender's
// bucket is not finite; marks and codes are then void.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>

#include "compressors/shared/message.h"
#include "compressors/shared/piece_codec.h"
#include "core/context.h"

namespace thinwire {

// Reads and writes the messages that hold certain pieces. All workers know which, so a message does not say.
class CodedMessage {
 public:
  // Codec, pieces and scratch must outlive it.
  CodedMessage(const PieceCodec& codec, std::span<Piece* const> pieces, Scratch& scratch);

  std::size_t bytes() const { return begins_.back(); }
  std::uint64_t elements() const { return elements_; }

  // What a worker sends: it writes the codes, in any order, and completes the message: header, marks, and zeros behind the
  // codes, or in place of all where it is not finite.
  void complete(std::span<std::byte> message, bool finite) const;
  // Parts of that, for a message that was cleared before. Sealing comes last: the checksum is of all bytes of `message`, and
  // whoever reads it must be given as many.
  void mark_used(std::span<std::byte> message, std::size_t piece) const;
  void seal(std::span<std::byte> message, bool finite) const;

  // Reads the header of what worker `rank` sent: whether it was finite. Throws PayloadError if it is not the header of
  // such a message, or if any byte of the message is not the one that was sealed.
  bool read_header(std::span<const std::byte> message, int rank) const;
  // Throws PayloadError if some code cannot be decoded to finite values.
  void check_codes(std::span<const std::byte> message) const;
  // Only those of used pieces: an owner's message leaves out the others' codes, which are zeros then.
  void check_used_codes(std::span<const std::byte> message) const;
  bool used(std::span<const std::byte> message, std::size_t piece) const;

  template <class Byte>
  std::span<Byte> code(std::span<Byte> message, std::size_t piece) const {
    return message.subspan(begins_[piece], begins_[piece + 1] - begins_[piece]);
  }

 private:
  const PieceCodec& codec_;
  std::span<Piece* const> pieces_;
  std::span<std::size_t> begins_;  // of the pieces' codes, and of what follows them
  std::uint64_t elements_ = 0;
};

// Opens the pieces of `work` and encodes the i-th into code_of(i), until one is not finite: then returns false.
template <class CodeOf>
bool open_and_encode(const PieceCodec& codec, std::span<Piece* const> pieces, const Work& work, Context& context,
                     const CodeOf& code_of) {
  std::atomic<bool> finite = true;
  context.threads().for_each(pieces.size(), work.elements, [&](std::size_t i, std::size_t) {
    if (!finite.load(std::memory_order_relaxed)) return;
    const kernels::Magnitudes magnitudes = open(*pieces[i], work);
    if (magnitudes.finite)
      codec.encode(*pieces[i], magnitudes, code_of(i));
    else
      finite.store(false, std::memory_order_relaxed);
  });
  return finite;
}

}  // namespace thinwire
