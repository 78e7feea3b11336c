#include "compressors/gather_and_average.h"

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

std::size_t bitmap_bytes(const Work& work) { return (work.pieces.size() + 7) / 8; }

bool bit(std::span<const std::byte> bits, std::size_t index) {
  return (std::to_integer<unsigned>(bits[index / 8]) >> (index % 8) & 1u) != 0;
}

void set_bit(std::span<std::byte> bits, std::size_t index) { bits[index / 8] |= std::byte{1} << (index % 8); }

// Stops at the first piece that is not finite.
void encode_pieces(const PieceCodec& codec, Work& work, Context& context, std::span<std::byte> used, ByteWriter& writer) {
  for (std::size_t index = 0; index < work.pieces.size() && context.finite; ++index) {
    Piece& piece = work.pieces[index];
    const kernels::Magnitudes magnitudes = open(piece, work);
    context.finite = magnitudes.finite;
    if (!context.finite) return;
    if (piece.used) set_bit(used, index);
    codec.encode(piece, magnitudes, writer.take(codec.encoded_bytes(piece.gradient.size())));
  }
}

void encode_message(const PieceCodec& codec, Work& work, Context& context, std::span<std::byte> message) {
  ByteWriter writer(message);
  const std::span<std::byte> header = writer.take(sizeof(Header));
  const std::span<std::byte> used = writer.take(bitmap_bytes(work));
  std::fill(used.begin(), used.end(), std::byte{0});
  encode_pieces(codec, work, context, used, writer);
  const std::span<std::byte> rest = writer.take(writer.left());
  std::fill(rest.begin(), rest.end(), std::byte{0});
  ByteWriter(header).write(Header{codec.wire_id(), codec.wire_version(), context.finite ? std::uint8_t{0} : kNotFinite, 0,
                                  static_cast<std::uint32_t>(work.elements)});
}

[[noreturn]] void refuse_header(int rank, const Header& header) {
  throw PayloadError("the message of worker " + std::to_string(rank) + " is not of the format agreed on: it begins with wire id " +
                     std::to_string(header.wire_id) + ", version " + std::to_string(header.wire_version) + ", flags " +
                     std::to_string(header.flags) + ", " + std::to_string(header.elements) +
                     " elements; check that all workers run the same thinwire with the same spec");
}

// A received message, taken apart. All of it has been checked.
class Received {
 public:
  Received(const PieceCodec& codec, const Work& work, int rank, std::span<const std::byte> message)
      : reader_(message, "a gathered message") {
    const auto header = reader_.read<Header>();
    if (header.wire_id != codec.wire_id() || header.wire_version != codec.wire_version() || header.flags > kNotFinite ||
        header.zero != 0 || header.elements != work.elements)
      refuse_header(rank, header);
    finite_ = header.flags != kNotFinite;
    used_ = reader_.take(bitmap_bytes(work));
  }

  bool finite() const { return finite_; }
  bool used(std::size_t piece) const { return bit(used_, piece); }
  ByteReader pieces() const { return reader_; }

 private:
  ByteReader reader_;
  bool finite_ = true;
  std::span<const std::byte> used_;
};

void check_pieces(const PieceCodec& codec, const Work& work, const Received& message) {
  ByteReader reader = message.pieces();
  for (const Piece& piece : work.pieces)
    codec.check(reader.take(codec.encoded_bytes(piece.gradient.size())), piece.gradient.size());
  reader.expect_end();
}

class Gathered {
 public:
  Gathered(const PieceCodec& codec, Work& work, int world_size, std::span<const std::byte> all)
      : codec_(codec), work_(work), world_size_(world_size), all_(all) {}

  // Reads every worker's header; throws PayloadError before anything is changed.
  bool all_finite() const {
    bool finite = true;
    for (int rank = 0; rank < world_size_; ++rank) finite = received(rank).finite() && finite;
    return finite;
  }

  void check() const {
    for (int rank = 0; rank < world_size_; ++rank) check_pieces(codec_, work_, received(rank));
  }

  void average() const {
    std::size_t offset = sizeof(Header) + bitmap_bytes(work_);
    for (std::size_t index = 0; index < work_.pieces.size(); ++index) {
      Piece& piece = work_.pieces[index];
      const std::size_t bytes = codec_.encoded_bytes(piece.gradient.size());
      average_piece(piece, index, offset, bytes);
      offset += bytes;
    }
  }

 private:
  std::span<const std::byte> message(int rank) const {
    const std::size_t bytes = all_.size() / static_cast<std::size_t>(world_size_);
    return all_.subspan(static_cast<std::size_t>(rank) * bytes, bytes);
  }
  Received received(int rank) const { return Received(codec_, work_, rank, message(rank)); }

  bool used_by_any(std::size_t index) const {
    for (int rank = 0; rank < world_size_; ++rank)
      if (bit(message(rank).subspan(sizeof(Header)), index)) return true;
    return false;
  }

  void average_piece(Piece& piece, std::size_t index, std::size_t offset, std::size_t bytes) const {
    if (piece.has_residual() && !used_by_any(index)) {  // what nobody used this step waits for the next
      skip(piece);
      return;
    }
    const float weight = 1.0f / static_cast<float>(world_size_);
    for (int rank = 0; rank < world_size_; ++rank)
      codec_.decode(message(rank).subspan(offset, bytes), weight, rank > 0, piece.mean());
    piece.stage = Piece::Stage::kDone;
  }

  const PieceCodec& codec_;
  Work& work_;
  int world_size_;
  std::span<const std::byte> all_;
};

}  // namespace

std::size_t message_bytes(const PieceCodec& codec, const Work& work) {
  std::size_t bytes = sizeof(Header) + bitmap_bytes(work);
  for (const Piece& piece : work.pieces) bytes += codec.encoded_bytes(piece.gradient.size());
  return bytes;
}

Exchange gather_and_average(const PieceCodec& codec, Work& work, Context& context) {
  const std::size_t bytes = message_bytes(codec, work);
  auto mine = context.scratch().take<std::byte>(bytes);
  auto all = context.scratch().take<std::byte>(bytes * static_cast<std::size_t>(context.world_size()));
  encode_message(codec, work, context, mine);
  Await round = context.gather(mine, all);
  co_await round;

  context.enter(Phase::kDecode);
  const Gathered gathered(codec, work, context.world_size(), all);
  context.any_non_finite = !gathered.all_finite();
  if (context.any_non_finite) co_return;
  gathered.check();
  gathered.average();
}

}  // namespace thinwire
