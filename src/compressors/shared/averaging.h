// What the strategies that average codes (gather_and_average, scatter_reduce) have in common.
#pragma once

#include <algorithm>
#include <atomic>
#include <span>

#include "compressors/shared/codec.h"
#include "compressors/shared/head.h"
#include "compressors/shared/message.h"

namespace thinwire {

// A worker's own values, as they are to be sent. Notes in `head` what it finds, under the pieces' numbers in `work`.
class OwnValues : public ValueSource {
 public:
  OwnValues(const Work& work, std::span<const Piece* const> pieces, Head& head) : work_(work), pieces_(pieces), head_(head) {}

  kernels::Magnitudes read(std::size_t i, std::span<float> values, std::size_t /*thread*/) const override {
    const kernels::Opened opened = read_values(*pieces_[i], work_, values);
    note(i, opened);
    return opened.sum;
  }
  std::optional<kernels::Unopened> unopened(std::size_t i) const override { return thinwire::unopened(*pieces_[i], work_); }
  void note(std::size_t i, const kernels::Opened& opened) const override {
    const auto index = static_cast<std::size_t>(pieces_[i] - work_.pieces.data());
    head_.note(index, opened);
    if (work_.measured) work_.report.energies[index] = static_cast<double>(opened.sum.sum_squares);
  }

  void read_part(std::size_t i, std::size_t first, std::span<float> values) const override { read_values(*pieces_[i], work_, first, values); }

 private:
  const Work& work_;
  std::span<const Piece* const> pieces_;
  Head& head_;
};

// What own codes leave of own values, kept from encoding on where a code takes long to decode: one without a fixed length. It lies where the
// next residual belongs, unless the old one is there.
class OwnLefts {
 public:
  OwnLefts(const Codec& codec, std::span<const Piece* const> pieces, const Work& work, Context& context) {
    if (codec.has_fixed_length() || !(work.feedback || work.measured)) return;
    const auto has_place = [](const Piece* piece) { return piece->has_residual() && piece->next_residual.data() != piece->residual.data(); };
    const bool have_places = std::ranges::all_of(pieces, has_place);
    const auto elsewhere = context.scratch().take<float>(have_places ? 0 : work.elements);
    by_place_ = context.scratch().take<std::span<float>>(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i)
      by_place_[i] = have_places ? pieces[i]->next_residual : elsewhere.subspan(pieces[i]->offset, pieces[i]->elements());
  }
  // In the pieces' order; empty where nothing is kept.
  std::span<const std::span<float>> by_place() const { return by_place_; }
  bool keeps() const { return !by_place_.empty(); }
  // Of the piece at that place; empty where nothing is kept.
  std::span<float> of(std::size_t place) const { return keeps() ? by_place_[place] : std::span<float>(); }

 private:
  std::span<std::span<float>> by_place_;
};

// skip(), for strategies: what is not sent counts as no error.
inline void skip_measured(const Work& work, std::size_t i) {
  if (work.measured) work.report.energies[i] = 0;
  skip(work.pieces[i]);
}

inline void encode_own(const Codec& codec, std::span<const Piece* const> pieces, const OwnValues& values,
                       std::span<const std::span<std::byte>> room, std::span<std::size_t> lengths, std::span<const MessageCodes> messages,
                       const OwnLefts& lefts, Head& head, Context& context) {
  const Encoding encoding{pieces, Pass::kFirst, values, room, lengths, messages, lefts.by_place()};
  if (!codec.encode(encoding, context)) head.note_not_finite();
}

// Whether holds(piece, thread) is true for all pieces of a message, by threads.
template <class Holds>
bool all_pieces(Context& context, const Work& work, const Holds& holds) {
  std::atomic<bool> all = true;
  for_each_piece(work, context, [&](const Piece&, std::size_t i, std::size_t thread) {
    if (all.load(std::memory_order_relaxed) && !holds(i, thread)) all.store(false, std::memory_order_relaxed);
  });
  return all;
}

// Whether a mean is finite and can be stored.
inline bool holds_mean(const Work& work, std::span<const float> mean) {
  const kernels::Scan scan = kernels::scan(mean);
  return scan.finite && fits(work, static_cast<double>(scan.largest));
}

// Means that are decoded before the commit point. Codes that were checked before are decoded past it, unless their bound
// does not tell whether means can be stored; all others are checked only as they are decoded, and their means are kept.
class EarlyMeans {
 public:
  // pieces: the message's, in any order.
  EarlyMeans(bool keeps, std::span<const Piece* const> pieces, const Work& work, Context& context)
      : pieces_(pieces), work_(work), context_(context), keeps_(keeps),
        means_(context.scratch().take<float>(keeps_ ? work.elements : 0)) {}

  // Whether all means are finite and can be stored. decode(i, mean, thread) finds that of pieces[i], and returns false if it has none.
  template <class Decode>
  bool fit(const Decode& decode) const {
    const std::size_t longest = keeps_ ? 0 : longest_piece(work_);
    const auto rooms = context_.scratch().take<float>(longest * context_.threads().threads());
    std::atomic<bool> all = true;
    context_.threads().for_each(pieces_.size(), work_.elements, [&](std::size_t i, std::size_t thread) {
      if (!all.load(std::memory_order_relaxed)) return;
      const Piece& piece = *pieces_[i];
      const auto mean = keeps_ ? kept(piece) : rooms.subspan(thread * longest, piece.elements());
      if (decode(i, mean, thread) && !holds_mean(work_, mean)) all.store(false, std::memory_order_relaxed);
    });
    return all;
  }

  bool keeps() const { return keeps_; }
  std::span<float> kept(const Piece& piece) const { return means_.subspan(piece.offset, piece.elements()); }

 private:
  std::span<const Piece* const> pieces_;
  const Work& work_;
  Context& context_;
  bool keeps_;
  std::span<float> means_;  // that are kept
};

}  // namespace thinwire
