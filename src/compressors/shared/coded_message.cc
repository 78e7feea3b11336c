#include "compressors/shared/coded_message.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "compressors/shared/head.h"
#include "core/bytes.h"
#include "kernels/checksum.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

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

[[noreturn]] void refuse_header(std::size_t rank, const Header& header) {
  throw PayloadError("the message of worker " + std::to_string(rank) + " is not of the format agreed on: it begins with wire id " +
                     std::to_string(header.wire_id) + ", version " + std::to_string(header.wire_version) + ", flags " +
                     std::to_string(header.flags) + ", " + std::to_string(header.elements) +
                     " elements; check that all workers run the same thinwire with the same spec");
}

// What follows is the caller's: other workers may have received the message as it was sent, and have their means.
[[noreturn]] void refuse_bytes(std::size_t rank, std::uint32_t said, std::uint32_t found) {
  throw PayloadError("the message of worker " + std::to_string(rank) + " was changed on its way: it says that its checksum is " +
                     std::to_string(said) + ", and it is " + std::to_string(found) +
                     "; go on from a checkpoint, and if this happens again look for faulty memory or a faulty network between that "
                     "worker and this one");
}

}  // namespace

// --- the format

MessageFormat::MessageFormat(const Codec& codec, std::span<const Piece* const> pieces, std::size_t tail, Scratch& scratch)
    : codec_(codec), pieces_(pieces), tail_(tail), begins_(scratch.take<std::size_t>(pieces.size() + 1)) {
  begins_[0] = lengths_begin() + (has_lengths() ? pieces.size() * sizeof(std::uint32_t) : 0);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    elements_ += pieces[i]->elements();
    begins_[i + 1] = begins_[i] + codec.most_bytes(*pieces[i]);
  }
}

std::size_t MessageFormat::lengths_begin() const { return sizeof(Header) + (pieces_.size() + 7) / 8; }

std::size_t MessageFormat::usual_bytes(Pass pass) const {
  const std::size_t codes = std::accumulate(pieces_.begin(), pieces_.end(), std::size_t{0}, [&](std::size_t bytes, const Piece* piece) {
    return bytes + codec_.usual_bytes(*piece, pass);
  });
  return std::clamp(codes - std::min(codes, kAnnouncementBytes), codes_begin(), begins_.back()) + tail_;
}

// --- sending

MessageToSend::MessageToSend(const MessageFormat& format, std::span<std::byte> memory, std::span<std::span<std::byte>> room,
                             std::span<std::size_t> lengths)
    : format_(format), memory_(memory), room_(room), lengths_(lengths) {
  const auto begins = format.begins();
  for (std::size_t i = 0; i < room_.size(); ++i) room_[i] = memory.subspan(begins[i], begins[i + 1] - begins[i]);
  clear(memory.first(format.codes_begin()));
}

void MessageToSend::mark_used(std::size_t piece) {
  memory_[sizeof(Header) + piece / 8] |= std::byte{1} << (piece % 8);
}

void MessageToSend::leave_out(std::size_t piece) {
  if (format_.has_lengths())
    lengths_[piece] = 0;
  else
    clear(room_[piece]);
}

// Codes only move to the front, and one after another.
void MessageToSend::put_together() {
  std::size_t end = format_.codes_begin();
  for (std::size_t i = 0; i < room_.size(); ++i) {
    const auto to = memory_.subspan(end, lengths_[i]);
    if (!to.empty()) std::memmove(to.data(), room_[i].data(), to.size());
    room_[i] = to;
    end += to.size();
    const auto length = static_cast<std::uint32_t>(to.size());
    std::memcpy(memory_.data() + format_.lengths_begin() + i * sizeof length, &length, sizeof length);
  }
  const auto kept = tail();
  if (!kept.empty()) std::memmove(memory_.data() + end, kept.data(), kept.size());
  size_ = end + kept.size();
}

void MessageToSend::complete(bool finite) {
  size_ = memory_.size();
  if (!finite) {
    if (format_.has_lengths()) size_ = format_.codes_begin() + format_.tail_bytes();
    clear(memory_.first(size_));
  } else if (format_.has_lengths()) {
    put_together();
  } else {
    clear(memory_.subspan(format_.most_bytes()));
  }
  Header header{format_.codec().wire_id(), format_.codec().wire_version(), finite ? std::uint8_t{0} : Head::kNotFinite, 0,
                static_cast<std::uint32_t>(format_.elements()), 0};
  ByteWriter(memory_).write(header);
  header.checksum = checksum_of(bytes());
  ByteWriter(memory_).write(header);
}

// --- receiving

ReceivedMessage::ReceivedMessage(const MessageFormat& format, std::span<const std::byte> bytes, Scratch& scratch)
    : format_(format), bytes_(bytes), begins_(format.begins()) {
  if (!format.has_lengths()) return;
  own_begins_ = scratch.take<std::size_t>(begins_.size());
  begins_ = own_begins_;
}

void ReceivedMessage::read(std::size_t rank) {
  ByteReader reader(bytes_, "a coded message");
  const auto header = reader.read<Header>();
  if (header.wire_id != format_.codec().wire_id() || header.wire_version != format_.codec().wire_version() ||
      header.flags > Head::kNotFinite || header.zero != 0 || header.elements != format_.elements())
    refuse_header(rank, header);
  if (const std::uint32_t checksum = checksum_of(bytes_); header.checksum != checksum) refuse_bytes(rank, header.checksum, checksum);
  reader.take(format_.codes_begin() - sizeof(Header));
  finite_ = header.flags != Head::kNotFinite;
  if (format_.has_lengths())
    read_lengths();
  else
    reader.take(format_.most_bytes() - format_.codes_begin());
}

void ReceivedMessage::read_lengths() {
  ByteReader lengths(bytes_.subspan(format_.lengths_begin()), "the lengths of codes");
  ByteReader codes(bytes_.subspan(format_.codes_begin()), "the codes of a message");
  const auto most = format_.begins();
  own_begins_[0] = format_.codes_begin();
  for (std::size_t i = 0; i + 1 < own_begins_.size(); ++i) {
    const auto length = lengths.read<std::uint32_t>();
    if (length > most[i + 1] - most[i])
      throw PayloadError("a piece's code has " + std::to_string(length) + " bytes; at most " + std::to_string(most[i + 1] - most[i]) +
                         " are possible");
    codes.take(length);
    own_begins_[i + 1] = own_begins_[i] + length;
  }
  codes.take(format_.tail_bytes());
  codes.expect_end();
}

bool ReceivedMessage::used(std::size_t piece) const {
  return (std::to_integer<unsigned>(bytes_[sizeof(Header) + piece / 8]) >> (piece % 8) & 1u) != 0;
}

float ReceivedMessage::check_codes(bool only_used) const {
  float largest = 0;
  for (std::size_t i = 0; i < format_.pieces().size() && !format_.has_lengths(); ++i)
    if (!only_used || used(i)) largest = std::max(largest, format_.codec().check(code(i), *format_.pieces()[i]));
  return largest;
}

Readings read_messages(std::span<ReceivedMessage> messages, bool only_used, Context& context) {
  const auto largest = context.scratch().take<float>(messages.size());
  std::uint64_t elements = 0;
  for (const ReceivedMessage& message : messages) elements += message.elements();
  context.threads().for_each(messages.size(), elements, [&](std::size_t rank, std::size_t) {
    messages[rank].read(rank);
    largest[rank] = messages[rank].finite() ? messages[rank].check_codes(only_used) : 0;
  });
  Readings readings;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    readings.finite = readings.finite && messages[rank].finite();
    readings.largest += static_cast<double>(largest[rank]);
  }
  return readings;
}

}  // namespace thinwire
