// The message of gather-only compressors: 12 bytes of header (wire id, wire version, flags, 0, number of elements as u32,
// checksum as u32), a bitmap of the pieces that are used (a bit a piece, least significant first), where codes have no fixed
// length those of all pieces as u32, the codes one behind the other, and a tail of bytes that are not the codec's (riders.h). Flag 1: the
// sender's values are not finite; what follows the header is then void.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compressors/shared/codec.h"
#include "core/context.h"
#include "core/scratch.h"
#include "core/varied.h"

namespace thinwire {

// How long messages of certain pieces are, and where in them is what. All workers know which pieces, so a message does not say.
class MessageFormat {
 public:
  // Codec, pieces and scratch must outlive it. tail: so many bytes.
  MessageFormat(const Codec& codec, std::span<const Piece* const> pieces, std::size_t tail, Scratch& scratch);

  const Codec& codec() const { return codec_; }
  std::span<const Piece* const> pieces() const { return pieces_; }
  std::uint64_t elements() const { return elements_; }
  // Of a message; with a fixed length every one's.
  std::size_t most_bytes() const { return begins_.back() + tail_; }
  // Without a fixed length: what with its announcement takes what is usual.
  std::size_t usual_bytes(Pass pass) const;
  // Of codes, in a message that has so many bytes.
  std::size_t code_bytes(std::size_t message) const { return message - std::min(message, codes_begin() + tail_); }
  // What is sent of a message of that length without a fixed one: with its announcement, its tail apart.
  std::size_t sent_bytes(std::size_t message) const { return message - tail_ + kAnnouncementBytes; }
  double bytes_an_element(std::size_t message) const {
    return static_cast<double>(sent_bytes(message)) / static_cast<double>(std::max<std::uint64_t>(elements_, 1));
  }

  bool has_lengths() const { return !codec_.has_fixed_length(); }
  std::size_t lengths_begin() const;
  std::size_t codes_begin() const { return begins_.front(); }
  // Where the pieces' codes begin if each takes the most, and where the last one ends.
  std::span<const std::size_t> begins() const { return begins_; }
  std::size_t tail_bytes() const { return tail_; }

 private:
  const Codec& codec_;
  std::span<const Piece* const> pieces_;
  std::size_t tail_;
  std::uint64_t elements_ = 0;
  std::span<std::size_t> begins_;
};

// What a worker sends.
class MessageToSend {
 public:
  // memory: at least format.most_bytes(). With a fixed length a message fills it, with zeros behind its tail. room, lengths:
  // one for each piece.
  MessageToSend(const MessageFormat& format, std::span<std::byte> memory, std::span<std::span<std::byte>> room,
                std::span<std::size_t> lengths);

  // For Encoding: room for each piece's code, and its length.
  std::span<const std::span<std::byte>> room() const { return room_; }
  std::span<std::size_t> lengths() const { return lengths_; }
  void mark_used(std::size_t piece);
  // Its code is left out: of no length, or of zeros.
  void leave_out(std::size_t piece);
  // To be filled before complete(), which keeps it unless values are not finite.
  std::span<std::byte> tail() const { return memory_.subspan(format_.begins().back(), format_.tail_bytes()); }

  // To be called last: puts the codes together and writes the header.
  void complete(bool finite);
  // The message, from then on, and a piece's code in it.
  std::span<std::byte> bytes() const { return memory_.first(size_); }
  std::span<const std::byte> code(std::size_t piece) const { return room_[piece].first(lengths_[piece]); }

 private:
  void put_together();

  const MessageFormat& format_;
  std::span<std::byte> memory_;
  std::size_t size_ = 0;
  std::span<std::span<std::byte>> room_;
  std::span<std::size_t> lengths_;
};

// What a worker sent.
class ReceivedMessage {
 public:
  ReceivedMessage(const MessageFormat& format, std::span<const std::byte> bytes, Scratch& scratch);

  // To be called first. Throws PayloadError if this is not such a message, or if any byte of it is not the one that was sent.
  void read(std::size_t rank);
  std::uint64_t elements() const { return format_.elements(); }
  bool finite() const { return finite_; }
  bool used(std::size_t piece) const;
  std::span<const std::byte> code(std::size_t piece) const {
    return bytes_.subspan(begins_[piece], begins_[piece + 1] - begins_[piece]);
  }
  std::span<const std::byte> tail() const { return bytes_.subspan(begins_.back(), format_.tail_bytes()); }
  // With a fixed length: throws PayloadError if some code cannot be decoded to finite values. only_used: others' codes are left out.
  // Returns an upper bound of what they decode to.
  float check_codes(bool only_used) const;

 private:
  void read_lengths();

  const MessageFormat& format_;
  std::span<const std::byte> bytes_;
  std::span<const std::size_t> begins_;
  std::span<std::size_t> own_begins_;  // without a fixed length
  bool finite_ = false;
};

// Reads messages, of workers in rank order, by threads.
struct Readings {
  bool finite = true;    // all of them
  double largest = 0;    // with a fixed length, an upper bound of the sum of what codes of one piece decode to; if finite
};
Readings read_messages(std::span<ReceivedMessage> messages, bool only_used, Context& context);

}  // namespace thinwire
