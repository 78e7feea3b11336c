// The message of gather-only compressors: 8 bytes of header (wire id, wire version, flags, 0, number of elements as u32), a
// bitmap of the pieces in which its sender has any gradient (a bit a piece, least significant first), then the pieces'
// codes one behind the other, each of a length that follows from its number of elements. Flag 1: the sender's bucket is
// not finite; marks and codes are then void.
#pragma once

#include <cstddef>
#include <span>

#include "compressors/piece_codec.h"

namespace thinwire {

// Reads and writes the messages that hold certain pieces. All workers know which, so a message does not say.
class CodedMessage {
 public:
  // Both must outlive it.
  CodedMessage(const PieceCodec& codec, std::span<Piece* const> pieces);

  std::size_t bytes() const { return bytes_; }

  // Marks are cleared and set, codes written in the pieces' order, and at last the message is sealed.
  void clear_marks(std::span<std::byte> message) const;
  void mark_used(std::span<std::byte> message, std::size_t piece) const;
  void seal(std::span<std::byte> message, bool finite) const;

  // Reads the header of what worker `rank` sent: whether it was finite. Throws PayloadError if it is not the header of
  // such a message.
  bool read_header(std::span<const std::byte> message, int rank) const;
  // Throws PayloadError if some code cannot be decoded to finite values.
  void check_codes(std::span<const std::byte> message) const;
  bool used(std::span<const std::byte> message, std::size_t piece) const;

  // A piece's code in `message`; `offset` is advanced and begins at first_code().
  std::size_t first_code() const { return first_code_; }
  template <class Byte>
  std::span<Byte> next_code(std::span<Byte> message, std::size_t piece, std::size_t& offset) const {
    const std::size_t bytes = codec_.encoded_bytes(pieces_[piece]->gradient.size());
    offset += bytes;
    return message.subspan(offset - bytes, bytes);
  }

 private:
  const PieceCodec& codec_;
  std::span<Piece* const> pieces_;
  std::uint64_t elements_ = 0;
  std::size_t first_code_;
  std::size_t bytes_;
};

// Opens the pieces of a message and encodes them into it, up to the first that is not finite: then returns false.
bool open_and_encode(const PieceCodec& codec, const CodedMessage& format, std::span<Piece* const> pieces, Work& work,
                     std::span<std::byte> message);

}  // namespace thinwire
