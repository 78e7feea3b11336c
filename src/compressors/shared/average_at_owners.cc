#include "compressors/shared/average_at_owners.h"

#include "compressors/shared/shards.h"
#include "kernels/rows.h"

namespace thinwire {
namespace {

class AtOwner {
 public:
  AtOwner(const Shards& shards, const OwnShards& own, const OwnLefts& lefts, std::span<const ReceivedMessage> received, const Head& head,
          const Work& work, Context& context)
      : shards_(shards), own_(own), lefts_(lefts), received_(received), head_(head), work_(work), context_(context),
        rooms_(shards.codec(), shards.pieces(), received.size(), context),
        codes_(context.scratch().take<std::span<const std::byte>>(context.threads().threads() * received.size())),
        longest_(longest_piece(work)), stored_(context.scratch().take<float>(longest_ * context.threads().threads())) {}

  std::span<const Piece* const> pieces() const { return shards_.pieces(static_cast<std::size_t>(context_.rank())); }

  // Whether all means can be stored.
  bool fit(const EarlyMeans& early) const {
    return early.fit([&](std::size_t i, std::span<float> mean, std::size_t thread) {
      average(i, mean, thread);
      return true;
    });
  }

  void commit_all(const EarlyMeans& early) const {
    const CommitRooms rooms(work_, context_);
    for_each_piece(work_, context_, [&](const Piece&, std::size_t place, std::size_t thread) {
      const Piece& piece = *shards_.pieces()[place];
      const std::size_t index = shards_.index(place);
      const bool is_owner = piece.owner == static_cast<std::uint32_t>(context_.rank());
      const CommitRoom room = leave(place, rooms, thread);
      if (!is_owner) return note_error(index, room);
      const std::size_t i = shards_.place_at_owner(place);
      if (early.keeps())
        std::ranges::copy(early.kept(piece), room.mean.begin());
      else
        average(i, room.mean, thread);
      commit(work_, index, room);
      if (!piece.gradient.is_float() && piece.has_residual()) keep_rounding(piece, room.mean, thread);
    });
  }

 private:
  // What this worker did not send of a piece: where its next residual belongs, as with owners that is never the old one's memory.
  CommitRoom leave(std::size_t place, const CommitRooms& rooms, std::size_t thread) const {
    const Piece& piece = *shards_.pieces()[place];
    const std::size_t index = shards_.index(place);
    const bool used = head_.used(index), is_kept = used && lefts_.keeps() && !own_.is_added(piece.owner);
    if (is_kept) return {lefts_.of(place), rooms.mean(work_, index, thread)};
    const CommitRoom room = rooms.read(work_, index, thread);
    if (room.left.empty() || !used) return room;
    if (own_.is_added(piece.owner))
      std::ranges::fill(room.left, 0.0f);
    else
      shards_.codec().decode(own_.code(place), piece, -1, true, room.left, rooms_.of(thread));
    return room;
  }

  void note_error(std::size_t index, const CommitRoom& room) const {
    if (work_.measured) work_.report.errors[index] = kernels::squared_norm(room.left);
  }

  // Of the i-th piece that this worker owns.
  void average(std::size_t i, std::span<float> mean, std::size_t thread) const {
    own_.average(received_, i, true, codes_.subspan(thread * received_.size(), received_.size()), mean, rooms_.of(thread));
  }

  // What a mean loses where it is stored in 16 bits is a worker's part of it, and the other workers' parts are nobody else's.
  void keep_rounding(const Piece& piece, std::span<const float> mean, std::size_t thread) const {
    const auto stored = stored_.subspan(thread * longest_, piece.elements());
    read_values(piece.gradient, work_.gradient_scale, {}, stored);
    const auto others = static_cast<float>(received_.size() - 1);
    kernels::add_scaled(piece.next_residual, mean, others);
    kernels::add_scaled(piece.next_residual, stored, -others);
  }

  const Shards& shards_;
  const OwnShards& own_;
  const OwnLefts& lefts_;
  std::span<const ReceivedMessage> received_;
  const Head& head_;
  const Work& work_;
  Context& context_;
  CodecRooms rooms_;
  std::span<std::span<const std::byte>> codes_;  // of one piece, for each thread
  std::size_t longest_;
  std::span<float> stored_;  // room for a piece in each thread
};

}  // namespace

Exchange average_at_owners(const Codec& codec, Work& work, Context& context) {
  Scratch& scratch = context.scratch();
  const auto workers = static_cast<std::size_t>(context.world_size());
  const auto payloads = scratch.take<std::span<const std::byte>>(workers);
  const Riders riders(context, workers);
  const Shards shards(codec, work, riders.bytes(), context);
  const OwnShards own(shards, context);
  Head head(work, scratch);
  const OwnLefts lefts(codec, shards.pieces(), work, context);
  own.encode(work, lefts, riders, head, context);
  std::span<ReceivedMessage> received;
  Exchange sending = send_to_owners(shards, own, payloads, received, context);
  co_await sending;

  context.enter(Phase::kDecode);
  const Readings readings = read_messages(received, true, context);
  if (!readings.finite) {  // as every worker is told by every other
    context.any_non_finite = true;
    co_return;
  }
  const AtOwner at_owner(shards, own, lefts, received, head, work, context);
  const EarlyMeans early(!codec.has_fixed_length(), at_owner.pieces(), work, context);
  const bool sure = !early.keeps() && fits(work, readings.largest);  // of sums, which codecs may divide at last
  if (!(sure || at_owner.fit(early))) {
    context.own_mean_lost = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  at_owner.commit_all(early);
}

}  // namespace thinwire
