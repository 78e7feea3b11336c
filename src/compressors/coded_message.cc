#include "compressors/coded_message.h"

#include <algorithm>
#include <string>

#include "core/bytes.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kNotFinite = 1;

struct Header {
  std::uint8_t wire_id;
  std::uint8_t wire_version;
  std::uint8_t flags;
  std::uint8_t zero;
  std::uint32_t elements;
};
static_assert(sizeof(Header) == 8);

void clear(std::span<std::byte> bytes) { std::fill(bytes.begin(), bytes.end(), std::byte{0}); }

[[noreturn]] void refuse_header(int rank, const Header& header) {
  throw PayloadError("the message of worker " + std::to_string(rank) + " is not of the format agreed on: it begins with wire id " +
                     std::to_string(header.wire_id) + ", version " + std::to_string(header.wire_version) + ", flags " +
                     std::to_string(header.flags) + ", " + std::to_string(header.elements) +
                     " elements; check that all workers run the same thinwire with the same spec");
}

}  // namespace

CodedMessage::CodedMessage(const PieceCodec& codec, std::span<Piece* const> pieces, Scratch& scratch)
    : codec_(codec), pieces_(pieces), begins_(scratch.take<std::size_t>(pieces.size() + 1)) {
  begins_[0] = sizeof(Header) + (pieces.size() + 7) / 8;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    elements_ += pieces[i]->gradient.size();
    begins_[i + 1] = begins_[i] + codec.encoded_bytes(*pieces[i]);
  }
}

void CodedMessage::complete(std::span<std::byte> message, bool finite) const {
  clear(finite ? message.first(begins_[0]) : message);
  clear(message.subspan(bytes()));
  for (std::size_t i = 0; finite && i < pieces_.size(); ++i)
    if (pieces_[i]->used) mark_used(message, i);
  seal(message, finite);
}

void CodedMessage::mark_used(std::span<std::byte> message, std::size_t piece) const {
  message[sizeof(Header) + piece / 8] |= std::byte{1} << (piece % 8);
}

bool CodedMessage::used(std::span<const std::byte> message, std::size_t piece) const {
  return (std::to_integer<unsigned>(message[sizeof(Header) + piece / 8]) >> (piece % 8) & 1u) != 0;
}

void CodedMessage::seal(std::span<std::byte> message, bool finite) const {
  ByteWriter(message).write(Header{codec_.wire_id(), codec_.wire_version(), finite ? std::uint8_t{0} : kNotFinite, 0,
                                   static_cast<std::uint32_t>(elements_)});
}

bool CodedMessage::read_header(std::span<const std::byte> message, int rank) const {
  const auto header = ByteReader(message, "a coded message").read<Header>();
  if (header.wire_id != codec_.wire_id() || header.wire_version != codec_.wire_version() || header.flags > kNotFinite ||
      header.zero != 0 || header.elements != elements_)
    refuse_header(rank, header);
  return header.flags != kNotFinite;
}

void CodedMessage::check_codes(std::span<const std::byte> message) const {
  for (std::size_t i = 0; i < pieces_.size(); ++i) codec_.check(code(message, i), *pieces_[i]);
}

void CodedMessage::check_used_codes(std::span<const std::byte> message) const {
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    if (used(message, i)) codec_.check(code(message, i), *pieces_[i]);
}

}  // namespace thinwire
