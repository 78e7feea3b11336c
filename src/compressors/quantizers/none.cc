#include "compressors/quantizers/none.h"

#include <algorithm>
#include <limits>

#include "compressors/shared/message.h"
#include "kernels/statistics.h"

namespace thinwire {
namespace {

// Whether the pieces' gradients lie one behind the other, as they do in a bucket of which nothing is exempt.
bool is_contiguous(std::span<const Piece> pieces) {
  for (std::size_t i = 1; i < pieces.size(); ++i)
    if (pieces[i - 1].gradient.data() + pieces[i - 1].gradient.size() != pieces[i].gradient.data()) return false;
  return true;
}

void copy_values(const Work& work, Context& context, std::span<float> packed) {
  for_each_piece(work, context, [&](const Piece& piece, std::size_t) {
    std::ranges::copy(piece.values(), packed.begin() + static_cast<std::ptrdiff_t>(piece.offset));
  });
}

void copy_means(const Work& work, Context& context, std::span<const float> packed) {
  for_each_piece(work, context, [&](const Piece& piece, std::size_t) {
    std::ranges::copy(packed.subspan(piece.offset, piece.mean().size()), piece.mean().begin());
  });
}

void divide(std::span<float> values, Context& context) {
  for_each_part(values.size(), context, [&](std::size_t first, std::size_t count, std::size_t) {
    kernels::multiply(values.subspan(first, count), 1.0f / static_cast<float>(context.world_size()));
  });
}

// Everything is sent, so nothing remains.
void finish(const Work& work) {
  for (Piece& piece : work.pieces) {
    std::fill(piece.residual.begin(), piece.residual.end(), 0.0f);
    piece.stage = Piece::Stage::kDone;
  }
}

bool any_residual(std::span<const Piece> pieces) {
  return std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.has_residual(); });
}

}  // namespace

Exchange None::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  const bool measured = any_residual(work.pieces);
  if (measured) for_each_piece(work, context, [&](Piece& piece, std::size_t) { open(piece, work); });
  const bool in_place = !measured && is_contiguous(work.pieces);
  std::span<float> values(work.pieces.front().gradient.data(), work.elements);
  if (!in_place) {
    values = context.scratch().take<float>(work.elements);
    copy_values(work, context, values);
  }
  if (!context.finite) values[0] = std::numeric_limits<float>::quiet_NaN();
  Await round = context.sum(values);
  co_await round;

  context.enter(Phase::kDecode);
  if (flagged(values, context)) co_return;
  divide(values, context);
  if (!in_place) copy_means(work, context, values);
  finish(work);
}

}  // namespace thinwire
