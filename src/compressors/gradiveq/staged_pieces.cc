#include "compressors/gradiveq/staged_pieces.h"

#include <algorithm>
#include <limits>
#include <memory>

namespace thinwire {

void write_staged(const StagedCoefficients& staged, int world_size, std::span<Piece> to) {
  const auto part = [](std::span<float> all, std::size_t first, std::size_t count) {
    return all.empty() ? all : all.subspan(first, count);
  };
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::size_t first = i * kChunkElements, count = std::min<std::size_t>(kChunkElements, staged.coefficients.size() - first);
    Piece& piece = *std::construct_at(&to[i]);
    piece.parameter = staged.piece.parameter;
    piece.definition = staged.piece.definition;
    piece.step = staged.piece.step;
    piece.first = staged.first + first;
    piece.offset = staged.begin + first;
    piece.memory = staged.memory;
    piece.owner = static_cast<std::uint32_t>((staged.piece.owner + i) % static_cast<std::size_t>(world_size));
    piece.random = staged.piece.random.from(staged.drawn + first);
    piece.gradient = staged.coefficients.subspan(first, count);
    piece.residual = piece.next_residual = part(staged.lost, first, count);
  }
}

Work staged_work(std::span<const Piece> pieces, std::uint64_t elements, bool feedback) {
  Work work;
  work.pieces = pieces;
  work.elements = elements;
  work.feedback = feedback;
  work.largest_mean = std::numeric_limits<float>::max();
  work.is_stage = true;
  return work;
}

}  // namespace thinwire
