// The strategy in which owners average, and keep the means: reduce-scatter.
#pragma once

#include "compressors/shared/codec.h"
#include "core/exchange.h"

namespace thinwire {

// One round, in which a worker sends (W - 1) / W messages: the first half of scatter_reduce. What a worker did not use it does not
// send, and keeps the residual of; owners average what they are sent. Direction::kToOwners.
Exchange average_at_owners(const Codec& codec, Work& work, Context& context);

}  // namespace thinwire
