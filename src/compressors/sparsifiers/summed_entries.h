// Entries at places that all workers know alike, summed: one all-reduce of a float an entry, and of the head's numbers.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "compressors/shared/averaging.h"

namespace thinwire {

// `places` tells how many entries are sent in all, which of them are a piece's, and where they stand in it:
//   std::size_t count() const;
//   std::span<T> of(std::span<T> sent, std::size_t i) const;
//   void for_each(const Piece&, std::size_t i, std::span<T> sent, body(place, factor, entry)) const;
// factor: what a sum is multiplied by to be an estimate. Of what a residual changes by, which is the gradient less what is sent, it keeps
// the share `kept`. Values are divided by the least power of two that is no less than the number of workers, so that no sum of them
// overflows.
template <class Places>
Exchange sum_entries(const Places& places, float kept, Work& work, Context& context) {
  const std::size_t longest = longest_piece(work);
  const auto buffers = context.scratch().take<float>(longest * context.threads().threads());
  Head head(work, context.scratch());
  // By a power of two nothing is rounded but what is nearly denormal.
  const auto divisor = static_cast<float>(std::bit_ceil(static_cast<unsigned>(context.world_size())));
  const auto message = context.scratch().take<float>(places.count() + head.numbers());
  const auto sums = message.first(places.count()), news = message.subspan(places.count());
  for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
    const auto values = buffers.subspan(thread * longest, piece.elements());
    head.note(i, read_values(piece, work, values));
    places.for_each(piece, i, sums, [&](std::size_t place, float factor, float& sent) {
      sent = values[place] / divisor;
      if (!std::isfinite(factor * values[place])) head.note_not_finite();  // a residual could not take it off
    });
  });
  head.write(news, 1.0f);
  Await round = context.sum(message);
  co_await round;

  context.enter(Phase::kDecode);
  head.template read<float>(news);
  const float share = divisor / static_cast<float>(context.world_size());
  const bool fit = all_pieces(context, work, [&](std::size_t i, std::size_t) {
    const Piece& piece = work.pieces[i];
    places.for_each(piece, i, sums, [&](std::size_t, float factor, float& sum) { sum *= factor * share; });
    return holds_mean(work, places.of(sums, i));
  });
  if (!head.finite() || !fit) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  const CommitRooms rooms(work, context);
  for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
    if (head.is_skipped(i)) return skip_measured(work, i);
    const bool keeps_less = kept < 1 && piece.has_residual();
    const auto forgotten = buffers.subspan(thread * longest, keeps_less ? piece.elements() : 0);
    std::ranges::copy(piece.residual.first(forgotten.size()), forgotten.begin());  // before it is read over
    const CommitRoom room = rooms.read(work, i, thread);
    std::ranges::fill(room.mean, 0.0f);
    places.for_each(piece, i, std::span<const float>(sums), [&](std::size_t place, float factor, float mean) {
      if (!room.left.empty()) room.left[place] -= room.left[place] / divisor * divisor * factor;
      room.mean[place] = mean;
    });
    for (std::size_t e = 0; e < forgotten.size(); ++e) forgotten[e] = (1 - kept) * (forgotten[e] - room.left[e]);
    commit(work, i, room, forgotten);
  });
}

// Places of 16 bits that are written down, in any order: what sum_entries() asks of its places.
class WrittenPlaces {
 public:
  // parts: which entries of all that are sent are each piece's.
  WrittenPlaces(const PieceParts& parts, Context& context) : parts_(parts), places_(context.scratch().take<std::uint16_t>(parts.count())) {}

  std::size_t count() const { return parts_.count(); }
  template <class T>
  std::span<T> of(std::span<T> sent, std::size_t i) const {
    return parts_.of(sent, i);
  }
  template <class T, class Body>
  void for_each(const Piece& /*piece*/, std::size_t i, std::span<T> sent, const Body& body) const {
    const auto places = places_of(i);
    const auto entries = parts_.of(sent, i);
    for (std::size_t j = 0; j < places.size(); ++j) body(std::size_t{places[j]}, 1.0f, entries[j]);
  }

 protected:
  std::span<std::uint16_t> places_of(std::size_t i) const { return parts_.of(places_, i); }

 private:
  PieceParts parts_;
  std::span<std::uint16_t> places_;
};

}  // namespace thinwire
