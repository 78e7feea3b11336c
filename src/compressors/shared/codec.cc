#include "compressors/shared/codec.h"

#include <algorithm>
#include <atomic>

#include "core/aligned.h"

namespace thinwire {

CodecRooms::CodecRooms(const Codec& codec, std::span<const Piece* const> pieces, std::size_t codes, Context& context) {
  for (const Piece* piece : pieces) bytes_ = std::max(bytes_, codec.room_bytes(*piece, codes));
  bytes_ = whole_lines(bytes_);
  all_ = context.scratch().take<std::byte>(bytes_ * context.threads().threads());
}

bool PieceCodec::encode(const Encoding& encoding, Context& context) const {
  std::size_t longest = 0;
  std::uint64_t elements = 0;
  for (const Piece* piece : encoding.pieces) {
    longest = std::max<std::size_t>(longest, piece->elements());
    elements += piece->elements();
  }
  const auto values_of_threads = context.scratch().take<float>(longest * context.threads().threads());
  const CodecRooms rooms(*this, encoding.pieces, 1, context);
  std::atomic<bool> good = true;
  context.threads().for_each(encoding.pieces.size(), elements, [&](std::size_t i, std::size_t thread) {
    encoding.lengths[i] = 0;
    if (encoding.room[i].empty() || !good.load(std::memory_order_relaxed)) return;
    const Piece& piece = *encoding.pieces[i];
    const auto values = values_of_threads.subspan(thread * longest, piece.elements());
    const kernels::Magnitudes magnitudes = encoding.source.read(i, values, thread);
    if (magnitudes.finite && can_encode(magnitudes)) {
      const auto left = encoding.left.empty() ? std::span<float>() : encoding.left[i];
      std::ranges::copy(values.first(left.size()), left.begin());
      encoding.lengths[i] = encode_piece(piece, encoding.pass, values, magnitudes, encoding.room[i], rooms.of(thread));
      if (!left.empty()) decode(encoding.room[i].first(encoding.lengths[i]), piece, -1, true, left, rooms.of(thread));
      if (encoding.source.encoded(i, encoding.room[i].first(encoding.lengths[i]), thread)) return;
    }
    good.store(false, std::memory_order_relaxed);
  });
  return good;
}

}  // namespace thinwire
