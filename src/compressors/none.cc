#include "compressors/none.h"

#include <algorithm>
#include <limits>

#include "compressors/message.h"
#include "kernels/statistics.h"

namespace thinwire {
namespace {

// Whether the pieces' gradients lie one behind the other, as they do in a bucket of which nothing is exempt.
bool is_contiguous(std::span<const Piece> pieces) {
  for (std::size_t i = 1; i < pieces.size(); ++i)
    if (pieces[i - 1].gradient.data() + pieces[i - 1].gradient.size() != pieces[i].gradient.data()) return false;
  return true;
}

void copy_values(std::span<const Piece> pieces, std::span<float> packed) {
  auto next = packed.begin();
  for (const Piece& piece : pieces) next = std::copy(piece.values().begin(), piece.values().end(), next);
}

void copy_means(std::span<const Piece> pieces, std::span<const float> packed) {
  auto next = packed.begin();
  for (const Piece& piece : pieces) {
    std::copy_n(next, piece.gradient.size(), piece.mean().begin());
    next += static_cast<std::ptrdiff_t>(piece.gradient.size());
  }
}

// Everything is sent, so nothing remains.
void finish(Work& work) {
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
  if (measured)
    for (Piece& piece : work.pieces) open(piece, work);
  const bool in_place = !measured && is_contiguous(work.pieces);
  std::span<float> values(work.pieces.front().gradient.data(), work.elements);
  if (!in_place) {
    values = context.scratch().take<float>(work.elements);
    copy_values(work.pieces, values);
  }
  if (!context.finite) values[0] = std::numeric_limits<float>::quiet_NaN();
  Await round = context.sum(values);
  co_await round;

  context.enter(Phase::kDecode);
  if (flagged(values, context)) co_return;
  kernels::multiply(values, 1.0f / static_cast<float>(context.world_size()));
  if (!in_place) copy_means(work.pieces, values);
  finish(work);
}

}  // namespace thinwire
