// The strategy in which owners give their values to all: all-gather.
#pragma once

#include "compressors/shared/codec.h"
#include "core/exchange.h"

namespace thinwire {

// One round, in which a worker sends its pieces' codes to all others: the second half of scatter_reduce. A piece that its owner does not use is
// zeros. Direction::kFromOwners.
Exchange spread_from_owners(const Codec& codec, Work& work, Context& context);

}  // namespace thinwire
