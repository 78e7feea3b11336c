// What gradiveq, in cycles or following every step, gives to a further stage that carries its coefficients.
#pragma once

#include <cstdint>
#include <span>

#include "compressors/shared/compressor.h"
#include "core/work.h"

namespace thinwire {

// Throws ArgumentError if the stage remembers something: coefficients change their meaning from step to step.
void refuse_memory(const Compressor* next);

// How many pieces carry so many coefficients: they are as long as any gradient's chunks.
inline std::size_t staged_pieces(std::size_t coefficients) { return (coefficients + kChunkElements - 1) / kChunkElements; }

// `to` <- pieces that carry the coefficients of `piece`, which begin at `begin` in the stage's message. Their mean takes the
// coefficients' place; what this worker's own lose is left in `lost`, which holds zeros, or is empty. `drawn`: how many random
// numbers the step has drawn for the piece before.
void write_staged(const Piece& piece, std::uint64_t begin, std::span<float> coefficients, std::span<float> lost, std::uint64_t drawn,
                  std::span<Piece> to);

}  // namespace thinwire
