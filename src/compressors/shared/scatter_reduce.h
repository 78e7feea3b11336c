// The strategy of gather-only compressors where workers are many: every chunk of the grid has an owner among the workers.
// Codes go to the chunks' owners (scatter), who decode and average them in rank order, encode the mean again, and send that
// to everybody (gather). Two rounds; a worker sends 2 (W-1)/W messages, however many workers there are.
//
// The second encoding's error times W stays in the owner's residual, so nothing is lost over all workers. The owner of a
// chunk follows from its place in the grid, so results do not depend on buckets.
#pragma once

#include "compressors/shared/piece_codec.h"
#include "core/context.h"
#include "core/exchange.h"
#include "core/work.h"

namespace thinwire {

// What scatter_reduce() will send, without headers.
struct ScatteredBytes {
  std::size_t all = 0;            // of the codes of all pieces
  std::size_t longest_shard = 0;  // of those that one worker owns
};
ScatteredBytes scattered_bytes(const PieceCodec& codec, const Work& work, Context& context);

Exchange scatter_reduce(const PieceCodec& codec, Work& work, Context& context);

}  // namespace thinwire
