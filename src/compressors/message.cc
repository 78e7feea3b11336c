#include "compressors/message.h"

#include <algorithm>

namespace thinwire {

kernels::Magnitudes open(Piece& piece, Work& work) {
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
  work.energy += static_cast<double>(magnitudes.sum_squares);
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

bool flagged(std::span<const float> sums, Context& context) {
  if (context.flag_needed && !kernels::scan(sums).finite) context.any_non_finite = true;
  return context.any_non_finite;
}

}  // namespace thinwire
