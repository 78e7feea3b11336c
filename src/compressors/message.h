// What strategies of all kinds do with a message's pieces.
#pragma once

#include <span>

#include "core/context.h"
#include "core/scratch.h"
#include "core/work.h"
#include "kernels/statistics.h"

namespace thinwire {

// Makes piece.values() what is to be sent: gradient plus residual. To be called once for every piece, right before it is
// encoded, while it is in the cache. Returns the magnitudes of the values; adds their energy to `work`.
kernels::Magnitudes open(Piece& piece, Work& work);

// For a piece whose exchange failed: the residual is again what it was before opening.
// piece.mean() is unspecified afterwards.
void put_back(Piece& piece);

// For a piece that no worker used: its mean is 0, and its residual waits for the next step.
void skip(Piece& piece);

// True if a sum that came back holds a NaN or an infinity, and somebody wants to know (context.flag_needed).
bool flagged(std::span<const float> sums, Context& context);

}  // namespace thinwire
