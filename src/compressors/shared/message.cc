#include "compressors/shared/message.h"

#include <algorithm>
#include <atomic>
#include <numeric>

namespace thinwire {

kernels::Magnitudes open(Piece& piece, const Work& work) {
  kernels::Magnitudes magnitudes;
  if (piece.has_residual()) {
    piece.stage = Piece::Stage::kOpen;
    const kernels::Absorbed absorbed = kernels::absorb(piece.gradient, piece.residual, work.gradient_scale);
    magnitudes = absorbed.sum;
    piece.used = absorbed.gradient_nonzero;
  } else {
    magnitudes = kernels::measure(piece.gradient);
    piece.used = magnitudes.largest > 0 || !magnitudes.finite;
  }
  piece.energy = magnitudes.sum_squares;
  return magnitudes;
}

void put_back(Piece& piece) {
  if (piece.has_residual()) std::copy(piece.gradient.begin(), piece.gradient.end(), piece.residual.begin());
  piece.stage = Piece::Stage::kDone;
}

void skip(Piece& piece) {
  put_back(piece);
  std::fill(piece.mean().begin(), piece.mean().end(), 0.0f);
}

double residual_energy(const Work& work, Context& context) {
  const auto energies = context.scratch().take<double>(work.pieces.size());
  for_each_piece(work, context,
                 [&](const Piece& piece, std::size_t i) { energies[i] = kernels::squared_norm(piece.residual); });
  return std::accumulate(energies.begin(), energies.end(), 0.0);
}

bool flagged(std::span<const float> sums, Context& context) {
  if (!context.flag_needed) return context.any_non_finite;
  std::atomic<bool> finite = true;
  for_each_part(sums.size(), context, [&](std::size_t first, std::size_t count, std::size_t) {
    if (finite && !kernels::scan(sums.subspan(first, count)).finite) finite = false;
  });
  if (!finite) context.any_non_finite = true;
  return context.any_non_finite;
}

}  // namespace thinwire
