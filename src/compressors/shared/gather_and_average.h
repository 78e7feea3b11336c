// The strategy in which everybody decodes everything: one round, in which a worker sends W - 1 messages.
#pragma once

#include "compressors/shared/codec.h"
#include "core/exchange.h"

namespace thinwire {

Exchange gather_and_average(const Codec& codec, Work& work, Context& context);

}  // namespace thinwire
