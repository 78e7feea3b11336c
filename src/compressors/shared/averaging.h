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
    head_.note(static_cast<std::size_t>(pieces_[i] - work_.pieces.data()), opened);
    return opened.sum;
  }

 private:
  const Work& work_;
  std::span<const Piece* const> pieces_;
  Head& head_;
};

inline void encode_own(const Codec& codec, std::span<const Piece* const> pieces, const OwnValues& values,
                       std::span<const std::span<std::byte>> room, std::span<std::size_t> lengths, Head& head, Context& context) {
  const Encoding encoding{pieces, Pass::kFirst, values, room, lengths};
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

}  // namespace thinwire
