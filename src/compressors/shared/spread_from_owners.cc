#include "compressors/shared/spread_from_owners.h"

#include <algorithm>

#include "compressors/shared/shards.h"

namespace thinwire {
namespace {

// This worker's message, of the pieces that it owns.
MessageToSend encode_own_pieces(const Shards& shards, const Work& work, const OwnLefts& lefts, Context& context) {
  Scratch& scratch = context.scratch();
  const auto rank = static_cast<std::size_t>(context.rank());
  const auto pieces = shards.pieces(rank);
  MessageToSend message(shards.format(rank), scratch.take<std::byte>(shards.most_bytes()), scratch.take<std::span<std::byte>>(pieces.size()),
                        scratch.take<std::size_t>(pieces.size()));
  Head head(work, scratch);
  const OwnValues values(work, pieces, head);
  const Encoding encoding{pieces, Pass::kSecond, values, message.room(), message.lengths(), lefts.by_place()};
  if (!shards.codec().encode(encoding, context)) head.note_not_finite();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (head.used(static_cast<std::size_t>(pieces[i] - work.pieces.data())))
      message.mark_used(i);
    else
      message.leave_out(i);
  }
  message.complete(head.finite());
  return message;
}

// What all owners have sent.
class FromOwners {
 public:
  FromOwners(const Shards& shards, std::span<const ReceivedMessage> messages, const Work& work, Context& context)
      : shards_(shards), messages_(messages), work_(work), context_(context), rooms_(shards.codec(), shards.pieces(), 1, context) {}

  // Whether all values can be stored.
  bool fit(const EarlyMeans& early) const {
    return early.fit([&](std::size_t place, std::span<float> values, std::size_t thread) {
      decode(place, values, thread);
      return true;
    });
  }

  void commit_all(const EarlyMeans& early, const OwnLefts& lefts) const {
    const CommitRooms rooms(work_, context_);
    for_each_piece(work_, context_, [&](const Piece&, std::size_t place, std::size_t thread) {
      const Piece& piece = *shards_.pieces()[place];
      const std::size_t index = shards_.index(place);
      const bool is_own = piece.owner == static_cast<std::uint32_t>(context_.rank());
      CommitRoom room = is_own && !lefts.keeps() ? rooms.read(work_, index, thread) : CommitRoom{{}, rooms.mean(work_, index, thread)};
      if (is_own && lefts.keeps()) room.left = lefts.of(piece);
      else if (!room.left.empty()) decode(place, room.left, thread, -1, true);
      if (early.keeps()) std::ranges::copy(early.kept(piece), room.mean.begin());
      else decode(place, room.mean, thread);
      commit(work_, index, room);
    });
  }

 private:
  void decode(std::size_t place, std::span<float> values, std::size_t thread, float weight = 1, bool add = false) const {
    const Piece& piece = *shards_.pieces()[place];
    const ReceivedMessage& message = messages_[piece.owner];
    const std::size_t i = shards_.place_at_owner(place);
    if (message.used(i))
      shards_.codec().decode(message.code(i), piece, weight, add, values, rooms_.of(thread));
    else if (!add)
      std::ranges::fill(values, 0.0f);
  }

  const Shards& shards_;
  std::span<const ReceivedMessage> messages_;
  const Work& work_;
  Context& context_;
  CodecRooms rooms_;
};

}  // namespace

Exchange spread_from_owners(const Codec& codec, Work& work, Context& context) {
  const auto payloads = context.scratch().take<std::span<const std::byte>>(static_cast<std::size_t>(context.world_size()));
  const Shards shards(codec, work, 0, context);
  const OwnLefts lefts(codec, shards.pieces(static_cast<std::size_t>(context.rank())), work, context);
  const MessageToSend message = encode_own_pieces(shards, work, lefts, context);
  Exchange sending = send_to_all(shards, message, payloads, context);
  co_await sending;

  context.enter(Phase::kDecode);
  const auto messages = received_messages(shards, payloads, [](std::size_t owner) { return owner; }, context.scratch());
  const Readings readings = read_messages(messages, true, context);
  const FromOwners spread(shards, messages, work, context);
  const EarlyMeans early(codec, shards.pieces(), work, context);
  const bool sure = !early.keeps() && fits(work, readings.largest);  // of all owners' bounds together
  if (!readings.finite || !(sure || spread.fit(early))) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  spread.commit_all(early, lefts);
}

}  // namespace thinwire
