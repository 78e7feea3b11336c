// How a compressor whose codes cannot be added up encodes and decodes; the strategies (gather_and_average, scatter_reduce) do the
// rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/context.h"
#include "core/work.h"
#include "kernels/opening.h"

namespace thinwire {

// What is encoded: a worker's own values, or the mean of a piece that it owns.
enum class Pass : std::uint8_t { kFirst, kSecond };

// Where values to be encoded come from. Calls for different pieces may come from several threads at once; `thread` tells them apart.
class ValueSource {
 public:
  virtual ~ValueSource() = default;
  // values <- those of the i-th piece.
  virtual kernels::Magnitudes read(std::size_t i, std::span<float> values, std::size_t thread) const = 0;
  // Where its values may be opened from in place of read(), if they lie in memory as floats: then note() is to be told what that has found.
  virtual std::optional<kernels::Unopened> unopened(std::size_t /*i*/) const { return std::nullopt; }
  virtual void note(std::size_t /*i*/, const kernels::Opened& /*opened*/) const {}
  // values <- those from its first-th on. For codecs without a fixed length, which look at some before they encode.
  virtual void read_part(std::size_t i, std::size_t first, std::span<float> values) const = 0;
  // To be called once the i-th piece is encoded. Returns false if that cannot be used.
  virtual bool encoded(std::size_t /*i*/, std::span<const std::byte> /*code*/, std::size_t /*thread*/) const { return true; }
};

// The pieces of one message among those that are encoded, from `begin` to `end`, and bytes of their codes that need no round more.
struct MessageCodes {
  std::size_t begin = 0, end = 0;
  std::size_t usual = 0;
};

// Pieces of one message or of several, and where their codes go.
struct Encoding {
  std::span<const Piece* const> pieces;
  Pass pass = Pass::kFirst;
  const ValueSource& source;
  std::span<const std::span<std::byte>> room;  // for each piece's code: most_bytes(); empty for a piece to be left out
  std::span<std::size_t> lengths;              // out: what of it was taken; 0 where left out
  std::span<const MessageCodes> messages;      // that they make up
  std::span<const std::span<float>> left = {};  // out: values less what their code decodes to, of each piece; empty if that is not wanted
};

class Codec {
 public:
  virtual ~Codec() = default;
  virtual std::uint8_t wire_id() const = 0;
  virtual std::uint8_t wire_version() const = 0;

  // The most that a piece's code takes, the same on every worker; with a fixed length, what every one takes.
  virtual std::size_t most_bytes(const Piece& piece) const = 0;
  virtual bool has_fixed_length() const { return true; }
  // Without a fixed length, what a piece's code usually takes, with its part of the message's head and announcement: the same on every worker.
  // Messages that are longer take a round more.
  virtual std::size_t usual_bytes(const Piece& piece, Pass /*pass*/) const { return most_bytes(piece); }
  // What a step's messages have taken, all as long as the longest, for each element of their pieces: the same on every worker. For the next
  // step's usual_bytes().
  virtual void foresee(std::span<const Piece* const> /*pieces*/, Pass /*pass*/, double /*bytes_an_element*/) const {}

  // Without a fixed length: whether an owner adds its own values as they are to what the others' codes decode to. Else it encodes them like
  // everybody's, as a codec must that remembers what it has sent, or that does not add up.
  virtual bool owners_add_values() const { return false; }

  // Encodes all of it, by threads. False if some value is not finite, or the source refuses: then codes are void.
  virtual bool encode(const Encoding& encoding, Context& context) const = 0;

  // With a fixed length: an upper bound of the magnitudes that a code decodes to. Throws PayloadError if decode() could not decode it to
  // finite values.
  virtual float check(std::span<const std::byte> /*code*/, const Piece& /*piece*/) const { return 0; }
  // Codes without a fixed length are checked as they are decoded, before a bucket's commit point, and what they decode to is kept until then. Unless
  // it is sooner done to unpack them there, and to decode past it what that has found. unpack() checks a code, returns an upper bound of the magnitudes
  // that it decodes to, and throws PayloadError. unpacked: at least unpacked_bytes() of a code of so many, aligned to 64.
  virtual bool unpacks_codes() const { return false; }
  virtual std::size_t unpacked_bytes(const Piece& /*piece*/, std::size_t /*code*/) const { return 0; }
  virtual float unpack(std::span<const std::byte> /*code*/, const Piece& /*piece*/, std::span<std::byte> /*unpacked*/, std::span<std::byte> /*room*/) const { return 0; }
  // values <- weight * decoded. past_caches: as kernels::join_levels_past_caches() has it.
  virtual void decode_unpacked(std::span<const std::byte> /*unpacked*/, float /*weight*/, bool /*past_caches*/, std::span<float> /*values*/) const {}

  // Bytes of scratch that a thread needs to encode a piece, or to decode so many codes of it at once; aligned to 64.
  virtual std::size_t room_bytes(const Piece& /*piece*/, std::size_t /*codes*/) const { return 0; }
  // values <- weight * decoded, or with `add` values <- values + weight * decoded. Pre: check() passed. Without a
  // fixed length: throws PayloadError for what is no code, and decodes to finite values.
  virtual void decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
                      std::span<std::byte> room) const = 0;
  // values <- weight times the sum of what codes, at least one, decode to, added in their order; or what a codec has in place of a mean,
  // such as a vote: then no larger than the mean of what check() returns for them.
  virtual void decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& piece, float weight,
                          std::span<float> values, std::span<std::byte> room) const {
    for (std::size_t i = 0; i < codes.size(); ++i) decode(codes[i], piece, weight, i > 0, values, room);
  }
};

// A codec that encodes one piece after another.
class PieceCodec : public Codec {
 public:
  bool encode(const Encoding& encoding, Context& context) const final;

 protected:
  // Whether a code can hold values of these magnitudes, which are finite.
  virtual bool can_encode(const kernels::Magnitudes& /*magnitudes*/) const { return true; }
  // Encodes values, whose magnitudes are given, and finite; may use their memory as it likes. Returns the code's length.
  virtual std::size_t encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                                   std::span<std::byte> code, std::span<std::byte> room) const = 0;
};

// Scratch for each thread to encode or decode pieces with.
class CodecRooms {
 public:
  // codes: the most that are decoded at once.
  CodecRooms(const Codec& codec, std::span<const Piece* const> pieces, std::size_t codes, Context& context);
  std::span<std::byte> of(std::size_t thread) const { return all_.subspan(thread * bytes_, bytes_); }

 private:
  std::size_t bytes_ = 0;
  std::span<std::byte> all_;
};

}  // namespace thinwire
