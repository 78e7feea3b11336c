#include "compressors/shared/spread_from_owners.h"

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
  const MessageCodes codes = shards.codes_of(rank);
  const Encoding encoding{pieces, Pass::kSecond, values, message.room(), message.lengths(), std::span(&codes, 1), lefts.by_place()};
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

void commit_all(const Shards& shards, const OwnersMessages& sent, const OwnLefts& lefts, const EarlyMeans& early, const Work& work,
                Context& context) {
  const CommitRooms rooms(work, !early.keeps() && !shards.codec().has_fixed_length(), context);
  for_each_piece(work, context, [&](const Piece&, std::size_t place, std::size_t thread) {
    const Piece& piece = *shards.pieces()[place];
    const std::size_t index = shards.index(place);
    if (!sent.used(place)) return skip_measured(work, index);
    const bool is_own = piece.owner == static_cast<std::uint32_t>(context.rank());
    const auto left = is_own && lefts.keeps() ? lefts.of(shards.place_at_owner(place)) : std::span<float>();
    if (early.keeps()) return commit(work, index, {left, early.kept(piece)});
    const bool is_read = is_own && !lefts.keeps();
    if (!is_read) return commit(work, index, {left, sent.decode_mean(place, rooms, work, thread)});
    const CommitRoom room = rooms.read(work, index, thread);
    if (!room.left.empty()) sent.take_from(place, room.left, thread);
    sent.decode(place, room.mean, thread);
    commit(work, index, room);
  });
}

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
  OwnersMessages sent(shards, messages, context);
  const std::optional<double> bound = sent.unpack(readings, context);
  const EarlyMeans early(!bound, shards.pieces(), work, context);
  const bool sure = bound && fits(work, *bound);
  if (!readings.finite || !(sure || sent.fit(early))) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  commit_all(shards, sent, lefts, early, work, context);
}

}  // namespace thinwire
