// The strategy of gather-only compressors where workers are few: every worker's message goes to every worker, who decodes
// them in rank order and averages. One round; a worker receives (W-1) messages.
#pragma once

#include "compressors/shared/piece_codec.h"
#include "core/context.h"
#include "core/exchange.h"
#include "core/work.h"

namespace thinwire {

Exchange gather_and_average(const PieceCodec& codec, Work& work, Context& context);

}  // namespace thinwire
