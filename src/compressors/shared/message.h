// What strategies of all kinds do with a message's pieces.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/scratch.h"
#include "core/work.h"
#include "kernels/statistics.h"

namespace thinwire {

// Makes piece.values() what is to be sent: gradient plus residual. To be called once for every piece, right before it is
// encoded, while it is in the cache. Returns the magnitudes of the values.
kernels::Magnitudes open(Piece& piece, const Work& work);

// For a piece whose exchange failed: the residual is again what it was before opening.
// piece.mean() is unspecified afterwards.
void put_back(Piece& piece);

// For a piece that no worker used: its mean is 0, and its residual waits for the next step.
void skip(Piece& piece);

// Sum of squares of the pieces' residuals.
double residual_energy(const Work& work, Context& context);

// Calls body(piece, index) for every piece, as ThreadPool does.
template <class Body>
void for_each_piece(const Work& work, Context& context, const Body& body) {
  context.threads().for_each(work.pieces.size(), work.elements, [&](std::size_t i, std::size_t) { body(work.pieces[i], i); });
}

// Calls body(first, count, thread), as ThreadPool does, for parts that make up `elements`: of a chunk's length each, the
// last perhaps shorter.
template <class Body>
void for_each_part(std::uint64_t elements, Context& context, const Body& body) {
  const std::uint64_t parts = (elements + kChunkElements - 1) / kChunkElements;
  context.threads().for_each(parts, elements, [&](std::size_t part, std::size_t thread) {
    const std::uint64_t first = part * kChunkElements;
    body(first, std::min(kChunkElements, elements - first), thread);
  });
}

// True if a sum that came back holds a NaN or an infinity, and somebody wants to know (context.flag_needed).
bool flagged(std::span<const float> sums, Context& context);

}  // namespace thinwire
