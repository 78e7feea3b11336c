#include "compressors/shared/scatter_reduce.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "compressors/shared/averaging.h"
#include "compressors/shared/coded_message.h"
#include "compressors/shared/riders.h"
#include "compressors/shared/shards.h"
#include "core/varied.h"
#include "kernels/rows.h"

namespace thinwire {
namespace {

// The means of an owner's pieces, to be encoded for all. What that loses, times the number of workers, the owner keeps.
class Means : public ValueSource {
 public:
  Means(const Shards& shards, std::span<const ReceivedMessage> received, const OwnShards& own, const Work& work, Context& context)
      : shards_(shards), received_(received), own_(own), work_(work), pieces_(shards.pieces(static_cast<std::size_t>(context.rank()))),
        first_place_(pieces_.empty() ? 0 : static_cast<std::size_t>(pieces_.data() - shards.pieces().data())),
        rooms_(shards.codec(), pieces_, received.size(), context),
        codes_(context.scratch().take<std::span<const std::byte>>(context.threads().threads() * received.size())) {
    for (const Piece* piece : pieces_) longest_ = std::max<std::size_t>(longest_, piece->elements());
    if (!shards.codec().has_fixed_length()) means_ = context.scratch().take<float>(own.owned_parts().count());
    if (!work.feedback) return;
    lost_ = context.scratch().take<float>(own.owned_parts().count());
    largest_ = context.scratch().take<float>(pieces_.size());
    if (!shards.codec().has_fixed_length()) {
      by_place_ = context.scratch().take<std::span<float>>(pieces_.size());
      for (std::size_t i = 0; i < pieces_.size(); ++i) by_place_[i] = lost_of(i);
    }
    lefts_ = context.scratch().take<float>(longest_ * context.threads().threads());
  }

  std::span<const Piece* const> pieces() const { return pieces_; }
  bool used_by_any(std::size_t i) const {
    return std::any_of(received_.begin(), received_.end(), [i](const ReceivedMessage& message) { return message.used(i); });
  }
  // What the second encoding of the owner's i-th piece lost, times the number of workers; empty without feedback.
  std::span<const float> lost(std::size_t i) const { return lost_of(i); }
  // For Encoding: where codes without a fixed length leave what they lose.
  std::span<const std::span<float>> left() const { return by_place_; }

  // To be called first, and if all workers' values are finite.
  void decode_all(Context& context) const {
    if (means_.empty()) return;
    context.threads().for_each(pieces_.size(), means_.size() * received_.size(),
                               [&](std::size_t i, std::size_t thread) { decode(i, mean_of(i), thread); });
  }

  kernels::Magnitudes read(std::size_t i, std::span<float> values, std::size_t thread) const override {
    if (means_.empty()) decode(i, values, thread);
    else std::ranges::copy(mean_of(i), values.begin());
    const kernels::Magnitudes magnitudes = kernels::measure(values);
    note(i, {magnitudes});
    if (by_place_.empty()) std::ranges::copy(values.first(lost_of(i).size()), lost_of(i).begin());
    return magnitudes;
  }
  std::optional<kernels::Unopened> unopened(std::size_t i) const override {
    if (means_.empty()) return std::nullopt;
    return kernels::Unopened{mean_of(i)};
  }
  void note(std::size_t i, const kernels::Opened& opened) const override {
    if (!lost_.empty()) largest_[i] = opened.sum.largest;
  }
  void read_part(std::size_t i, std::size_t first, std::span<float> values) const override {
    std::ranges::copy(mean_of(i).subspan(first, values.size()), values.begin());
  }

  // False if what a mean loses, times W, leaves the range of float, so that no residual can hold it.
  bool encoded(std::size_t i, std::span<const std::byte> code, std::size_t thread) const override {
    const std::span<float> lost = lost_of(i);
    if (lost.empty()) return true;
    if (by_place_.empty()) shards_.codec().decode(code, *pieces_[i], -1, true, lost, rooms_.of(thread));
    kernels::multiply(lost, workers());
    // A mean that large may be foreign bytes; most of the time there is nothing to look for.
    return std::isfinite(4 * workers() * largest_[i]) || residual_is_finite(i, thread);
  }

 private:
  float workers() const { return static_cast<float>(received_.size()); }
  std::span<float> lost_of(std::size_t i) const { return lost_.empty() ? lost_ : own_.owned_parts().of(lost_, i); }
  std::span<float> mean_of(std::size_t i) const { return own_.owned_parts().of(means_, i); }
  void decode(std::size_t i, std::span<float> mean, std::size_t thread) const {
    own_.average(received_, i, false, codes_.subspan(thread * received_.size(), received_.size()), mean, rooms_.of(thread));
  }

  bool residual_is_finite(std::size_t i, std::size_t thread) const {
    if (own_.is_added(pieces_[i]->owner)) return kernels::scan(lost_of(i)).finite;
    const auto left = lefts_.subspan(thread * longest_, pieces_[i]->elements());
    read_values(*pieces_[i], work_, left);
    shards_.codec().decode(own_.code(first_place_ + i), *pieces_[i], -1, true, left, rooms_.of(thread));
    kernels::add_scaled(left, lost_of(i), 1.0f);
    return kernels::scan(left).finite;
  }

  const Shards& shards_;
  std::span<const ReceivedMessage> received_;
  const OwnShards& own_;
  const Work& work_;
  std::span<const Piece* const> pieces_;
  std::size_t first_place_;  // of the owner's pieces among all
  CodecRooms rooms_;
  std::span<std::span<const std::byte>> codes_;  // of one piece, for each thread
  std::size_t longest_ = 0;
  std::span<float> means_;  // decoded before they are read: without a fixed length
  std::span<float> lost_;
  std::span<float> largest_;                 // of each mean
  std::span<std::span<float>> by_place_;     // lost_ of each piece, without a fixed length
  std::span<float> lefts_;  // room for one in each thread
};

// Encodes the means of this owner's pieces into `second`, whose tail is there already.
void encode_means(const Means& means, const Shards& shards, bool finite, MessageToSend& second, Context& context) {
  const auto room = context.scratch().take<std::span<std::byte>>(means.pieces().size());
  for (std::size_t i = 0; finite && i < room.size(); ++i) {
    room[i] = second.room()[i];
    if (means.used_by_any(i)) {
      second.mark_used(i);
    } else {
      second.leave_out(i);
      room[i] = {};
    }
  }
  if (finite) means.decode_all(context);
  const MessageCodes codes = shards.codes_of(static_cast<std::size_t>(context.rank()));
  const Encoding encoding{means.pieces(), Pass::kSecond, means, room, second.lengths(), std::span(&codes, 1), means.left()};
  second.complete(finite && shards.codec().encode(encoding, context));
}

void commit_means(const Shards& shards, const OwnersMessages& sent, const OwnShards& own, const OwnLefts& lefts, const Means& means,
                  const EarlyMeans& early, const Work& work, Context& context) {
  const CommitRooms rooms(work, !early.keeps() && !shards.codec().has_fixed_length(), context);
  const auto rank = static_cast<std::size_t>(context.rank());
  for_each_piece(work, context, [&](const Piece&, std::size_t place, std::size_t thread) {
    const Piece& piece = *shards.pieces()[place];
    const std::size_t index = shards.index(place);
    if (!sent.used(place)) return skip_measured(work, index);
    const auto owed = piece.owner == rank ? means.lost(shards.place_at_owner(place)) : std::span<const float>();
    if (own.is_added(piece.owner)) {
      const std::span<float> mean = early.keeps() ? early.kept(piece) : sent.decode_mean(place, rooms, work, thread);
      return commit_added(work, index, mean, owed);
    }
    if (early.keeps()) return commit(work, index, {lefts.of(place), early.kept(piece)}, owed);
    if (lefts.keeps()) return commit(work, index, {lefts.of(place), sent.decode_mean(place, rooms, work, thread)}, owed);
    const CommitRoom room = rooms.read(work, index, thread);
    if (!room.left.empty()) shards.codec().decode(own.code(place), piece, -1, true, room.left, sent.room(thread));
    sent.decode(place, room.mean, thread);
    commit(work, index, room, owed);
  });
}

}  // namespace

ScatteredBytes scattered_bytes(const Codec& codec, const Work& work, Context& context) {
  ScatteredBytes bytes;
  const auto shards = context.scratch().take<std::size_t>(static_cast<std::size_t>(context.world_size()));
  std::fill(shards.begin(), shards.end(), 0);
  for (const Piece& piece : work.pieces) {
    const std::size_t encoded = codec.usual_bytes(piece, Pass::kFirst);
    bytes.all += encoded;
    bytes.longest_shard = std::max(bytes.longest_shard, shards[piece.owner] += encoded);
  }
  return bytes;
}

Exchange scatter_reduce(const Codec& codec, Work& work, Context& context) {
  Scratch& scratch = context.scratch();
  const auto payloads = scratch.take<std::span<const std::byte>>(static_cast<std::size_t>(context.world_size()));
  const auto rank = static_cast<std::size_t>(context.rank());
  const Riders riders(context, payloads.size());
  const Shards shards(codec, work, riders.bytes(), context);
  const OwnShards own(shards, context);
  Head head(work, scratch);
  const OwnLefts lefts(codec, shards.pieces(), work, context);
  own.encode(work, lefts, riders, head, context);
  std::span<ReceivedMessage> received;
  Exchange first_half = send_to_owners(shards, own, payloads, received, context);
  co_await first_half;

  context.purpose = Purpose::kSecond;
  const Readings at_owner = read_messages(received, false, context);
  const Means means(shards, received, own, work, context);
  const auto count = means.pieces().size();
  MessageToSend second(shards.format(rank), scratch.take<std::byte>(shards.most_bytes()), scratch.take<std::span<std::byte>>(count),
                       scratch.take<std::size_t>(count));
  riders.sum(rank, received);
  riders.write(rank, second.tail());
  encode_means(means, shards, at_owner.finite, second, context);
  Exchange second_half = send_to_all(shards, second, payloads, context);
  co_await second_half;

  context.purpose = Purpose::kPayload;
  context.enter(Phase::kDecode);
  const auto messages = received_messages(shards, payloads, [](std::size_t owner) { return owner; }, scratch);
  const Readings readings = read_messages(messages, true, context);
  OwnersMessages sent(shards, messages, context);
  const std::optional<double> bound = sent.unpack(readings, context);
  const EarlyMeans early(!bound, shards.pieces(), work, context);
  const bool sure = bound && fits(work, *bound);
  if (!readings.finite || !(sure || sent.fit(early))) {
    context.any_non_finite = true;
    co_return;
  }
  for (std::size_t owner = 0; owner < messages.size(); ++owner) riders.take_sums(owner, messages[owner]);
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  commit_means(shards, sent, own, lefts, means, early, work, context);
}

}  // namespace thinwire
