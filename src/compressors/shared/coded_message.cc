#include "compressors/shared/coded_message.h"

#include <algorithm>
#include <string>

#include "core/bytes.h"
#include "kernels/checksum.h"
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
  std::uint32_t checksum;
};
static_assert(sizeof(Header) == 12);

void clear(std::span<std::byte> bytes) { std::fill(bytes.begin(), bytes.end(), std::byte{0}); }

// Of all bytes but the checksum itself, without a copy of them: of those behind the header, and then of the words before it.
std::uint32_t checksum_of(std::span<const std::byte> message) {
  ByteReader reader(message, "a coded message");
  const auto first = reader.read<std::uint32_t>(), elements = reader.read<std::uint32_t>();
  return kernels::mix_in(kernels::mix_in(kernels::checksum(message.subspan(sizeof(Header))), first), elements);
}

[[noreturn]] void refuse_header(int rank, const Header& header) {
  throw PayloadError("the message of worker " + std::to_string(rank) + " is not of the format agreed on: it begins with wire id " +
                     std::to_string(header.wire_id) + ", version " + std::to_string(header.wire_version) + ", flags " +
                     std::to_string(header.flags) + ", " + std::to_string(header.elements) +
                     " elements; check that all workers run the same thinwire with the same spec");
}

// What follows is the caller's: other workers may have received the message as it was sent, and have their means.
[[noreturn]] void refuse_bytes(int rank, std::uint32_t said, std::uint32_t found) {
  throw PayloadError("the message of worker " + std::to_string(rank) + " was changed on its way: it says that its checksum is " +
                     std::to_string(said) + ", and it is " + std::to_string(found) +
                     "; go on from a checkpoint, and if this happens again look for faulty memory or a faulty network between that "
                     "worker and this one");
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
  Header header{codec_.wire_id(), codec_.wire_version(), finite ? std::uint8_t{0} : kNotFinite, 0,
                static_cast<std::uint32_t>(elements_), 0};
  ByteWriter(message).write(header);
  header.checksum = checksum_of(message);
  ByteWriter(message).write(header);
}

bool CodedMessage::read_header(std::span<const std::byte> message, int rank) const {
  const auto header = ByteReader(message, "a coded message").read<Header>();
  if (header.wire_id != codec_.wire_id() || header.wire_version != codec_.wire_version() || header.flags > kNotFinite ||
      header.zero != 0 || header.elements != elements_)
    refuse_header(rank, header);
  if (const std::uint32_t checksum = checksum_of(message); header.checksum != checksum)
    refuse_bytes(rank, header.checksum, checksum);
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
