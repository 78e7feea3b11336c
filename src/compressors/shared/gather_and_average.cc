#include "compressors/shared/gather_and_average.h"

#include <algorithm>
#include <memory>

#include "compressors/shared/averaging.h"
#include "compressors/shared/coded_message.h"
#include "compressors/shared/riders.h"
#include "core/varied.h"

namespace thinwire {
namespace {

// Every worker's codes of all pieces.
class Gathered {
 public:
  Gathered(const MessageFormat& format, std::span<const ReceivedMessage> messages, const Work& work, Context& context)
      : format_(format), messages_(messages), work_(work), context_(context), rooms_(format.codec(), format.pieces(), messages.size(), context),
        codes_(context.scratch().take<std::span<const std::byte>>(context.threads().threads() * messages.size())) {}

  // Whether all means can be stored.
  bool fit(const EarlyMeans& early) const {
    return early.fit([&](std::size_t i, std::span<float> mean, std::size_t thread) {
      if (is_skipped(i)) return false;
      decode(i, thread, mean);
      return true;
    });
  }

  void average(const MessageToSend& own, const OwnLefts& lefts, const EarlyMeans& early) const {
    const CommitRooms rooms(work_, context_);
    const std::uint64_t decoded = work_.elements * messages_.size();
    context_.threads().for_each(work_.pieces.size(), decoded, [&](std::size_t i, std::size_t thread) {
      const Piece& piece = work_.pieces[i];
      if (is_skipped(i)) return skip_measured(work_, i);
      if (early.keeps()) return commit(work_, i, {lefts.of(i), early.kept(piece)});
      const CommitRoom room = rooms.read(work_, i, thread);
      if (!room.left.empty()) format_.codec().decode(own.code(i), piece, -1, true, room.left, rooms_.of(thread));
      decode(i, thread, room.mean);
      commit(work_, i, room);
    });
  }

 private:
  // Unused by all workers, its residual waits.
  bool is_skipped(std::size_t piece) const {
    return work_.pieces[piece].has_residual() &&
           std::ranges::none_of(messages_, [piece](const ReceivedMessage& message) { return message.used(piece); });
  }

  void decode(std::size_t piece, std::size_t thread, std::span<float> mean) const {
    const auto codes = codes_.subspan(thread * messages_.size(), messages_.size());
    for (std::size_t rank = 0; rank < codes.size(); ++rank) codes[rank] = messages_[rank].code(piece);
    format_.codec().decode_sum(codes, work_.pieces[piece], 1.0f / static_cast<float>(codes.size()), mean, rooms_.of(thread));
  }

  const MessageFormat& format_;
  std::span<const ReceivedMessage> messages_;
  const Work& work_;
  Context& context_;
  CodecRooms rooms_;
  std::span<std::span<const std::byte>> codes_;  // of one piece, for each thread
};

}  // namespace

Exchange gather_and_average(const Codec& codec, Work& work, Context& context) {
  Scratch& scratch = context.scratch();
  const auto workers = static_cast<std::size_t>(context.world_size());
  const auto pieces = scratch.take<const Piece*>(work.pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i] = &work.pieces[i];
  const Riders riders(context, 1);
  const MessageFormat format(codec, pieces, riders.bytes(), scratch);
  MessageToSend mine(format, scratch.take<std::byte>(format.most_bytes()), scratch.take<std::span<std::byte>>(pieces.size()),
                     scratch.take<std::size_t>(pieces.size()));
  Head head(work, scratch);
  const OwnValues values(work, pieces, head);
  const OwnLefts lefts(codec, pieces, work, context);
  const std::size_t usual = format.usual_bytes(Pass::kFirst);
  const MessageCodes codes{0, pieces.size(), format.code_bytes(usual)};
  encode_own(codec, pieces, values, mine.room(), mine.lengths(), std::span(&codes, 1), lefts, head, context);
  for (std::size_t i = 0; i < pieces.size(); ++i)
    if (head.used(i)) mine.mark_used(i);
  riders.write(0, mine.tail());
  mine.complete(head.finite());

  const auto payloads = scratch.take<std::span<const std::byte>>(workers);
  if (codec.has_fixed_length()) {
    const auto all = scratch.take<std::byte>(workers * mine.bytes().size());
    Await round = context.gather(mine.bytes(), all);
    co_await round;
    for (std::size_t rank = 0; rank < workers; ++rank) payloads[rank] = all.subspan(rank * mine.bytes().size(), mine.bytes().size());
  } else {
    Exchange rounds = gather_varied(mine.bytes(), {usual, format.most_bytes()}, payloads, context);
    co_await rounds;
    codec.foresee(pieces, Pass::kFirst, format.bytes_an_element(longest_of(payloads)));
  }

  context.enter(Phase::kDecode);
  const auto messages = scratch.take<ReceivedMessage>(workers);
  for (std::size_t rank = 0; rank < workers; ++rank) std::construct_at(&messages[rank], format, payloads[rank], scratch);
  const Readings readings = read_messages(messages, false, context);
  const Gathered gathered(format, messages, work, context);
  const EarlyMeans early(!codec.has_fixed_length(), pieces, work, context);
  const bool sure = !early.keeps() && fits(work, readings.largest / static_cast<double>(workers));
  if (!readings.finite || !(sure || gathered.fit(early))) {
    context.any_non_finite = true;
    co_return;
  }
  riders.sum(0, messages);
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  gathered.average(mine, lefts, early);
}

}  // namespace thinwire
