#include "compressors/gradiveq/staged_pieces.h"

#include <algorithm>
#include <memory>

#include "thinwire/errors.h"

namespace thinwire {

void refuse_memory(const Compressor* next) {
  if (next && next->make_memory({"coefficients", {1}}))
    throw ArgumentError("compressor 'gradiveq': the stage that follows it must remember nothing, as its coefficients change "
                        "their meaning; qsgd, bf16, fp16 and none do");
}

void write_staged(const Piece& piece, std::uint64_t begin, std::span<float> coefficients, std::span<float> lost, std::uint64_t drawn,
                  std::span<Piece> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::size_t first = i * kChunkElements, count = std::min<std::size_t>(kChunkElements, coefficients.size() - first);
    Piece& staged = *std::construct_at(&to[i]);
    staged.parameter = piece.parameter;
    staged.definition = piece.definition;
    staged.step = piece.step;
    staged.first = staged.offset = begin + first;
    staged.chunk = piece.chunk + i;
    staged.random = piece.random.from(drawn + first);
    staged.gradient = coefficients.subspan(first, count);
    if (!lost.empty()) staged.residual = lost.subspan(first, count);
  }
}

}  // namespace thinwire
