#include "compressors/coded_message.h"

#include <algorithm>
#include <string>

#include "compressors/message.h"
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

CodedMessage::CodedMessage(const PieceCodec& codec, std::span<Piece* const> pieces)
    : codec_(codec), pieces_(pieces), first_code_(sizeof(Header) + (pieces.size() + 7) / 8), bytes_(first_code_) {
  for (const Piece* piece : pieces) {
    elements_ += piece->gradient.size();
    bytes_ += codec.encoded_bytes(piece->gradient.size());
  }
}

void CodedMessage::clear_marks(std::span<std::byte> message) const { clear(message.first(first_code_)); }

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
  std::size_t offset = first_code_;
  for (std::size_t i = 0; i < pieces_.size(); ++i) codec_.check(next_code(message, i, offset), pieces_[i]->gradient.size());
}

bool open_and_encode(const PieceCodec& codec, const CodedMessage& format, std::span<Piece* const> pieces, Work& work,
                     std::span<std::byte> message) {
  format.clear_marks(message);
  std::size_t offset = format.first_code();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::size_t begin = offset;
    const std::span<std::byte> code = format.next_code(message, i, offset);
    const kernels::Magnitudes magnitudes = open(*pieces[i], work);
    if (!magnitudes.finite) {
      clear(message.subspan(begin));
      return false;
    }
    if (pieces[i]->used) format.mark_used(message, i);
    codec.encode(*pieces[i], magnitudes, code);
  }
  clear(message.subspan(offset));
  return true;
}

}  // namespace thinwire
