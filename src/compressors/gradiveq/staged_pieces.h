// What gradiveq, in cycles or following every step, gives to a further stage that carries its coefficients.
#pragma once

#include <cstdint>
#include <span>

#include "compressors/shared/compressor.h"
#include "core/work.h"

namespace thinwire {

// What is to be sent of a piece, if it is the memory of its gradient as it is: without feedback, so that nobody asks what was used, and
// what is not finite shows in the coefficients. Else empty.
inline std::span<const float> values_in_place(const Piece& piece, const Work& work) {
  if (!piece.gradient.is_float() || work.feedback || work.gradient_scale != 1) return {};
  return piece.gradient.floats();
}

// Coefficients that have a row for each of `dims` components and a column for each slice, as a matrix, or group by group of so many neighbouring
// columns, the last perhaps of fewer, within each the components' rows.
void rows_to_groups(std::span<const float> rows, std::size_t dims, std::size_t group, std::span<float> groups);
void groups_to_rows(std::span<const float> groups, std::size_t dims, std::size_t group, std::span<float> rows);

// How many pieces carry so many coefficients: they are as long as any gradient's chunks.
inline std::size_t staged_pieces(std::size_t coefficients) { return (coefficients + kChunkElements - 1) / kChunkElements; }

// What carries the coefficients of `piece`, which begin at `begin` in the stage's message. Their mean takes the coefficients' place;
// what the stage loses of this worker's own is left in `lost`, which holds zeros, or is empty.
struct StagedCoefficients {
  const Piece& piece;
  std::uint64_t begin = 0;
  std::span<float> coefficients;
  std::uint64_t first = 0;             // among the coefficients of its parameter, all of which are in no message
  CompressorMemory* memory = nullptr;  // of the stage
  std::span<float> lost = {};
  std::uint64_t drawn = 0;  // how many random numbers the step has drawn for the piece before
};
void write_staged(const StagedCoefficients& staged, int world_size, std::span<Piece> to);

// The message that those pieces make up.
Work staged_work(std::span<const Piece> pieces, std::uint64_t elements, bool feedback);

}  // namespace thinwire
