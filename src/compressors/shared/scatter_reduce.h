// The strategy in which every piece has an owner, to whom its codes go; owners average, and spread the means.
#pragma once

#include "compressors/shared/codec.h"
#include "core/exchange.h"

namespace thinwire {

// Two rounds, in which a worker sends 2 (W - 1) / W messages. Owners encode means a second time, at Pass::kSecond. W times what
// that loses stays in the owner's residual, so that over all workers nothing is lost.
Exchange scatter_reduce(const Codec& codec, Work& work, Context& context);

// Bytes of codes, as they usually are.
struct ScatteredBytes {
  std::size_t all = 0;            // of all pieces
  std::size_t longest_shard = 0;  // of the owner with the longest codes
};
ScatteredBytes scattered_bytes(const Codec& codec, const Work& work, Context& context);

}  // namespace thinwire
