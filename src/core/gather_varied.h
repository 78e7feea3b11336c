// A gather of payloads whose lengths differ from worker to worker.
#pragma once

#include <cstddef>
#include <span>

#include "core/context.h"
#include "core/exchange.h"

namespace thinwire {

// Fills payloads[r] with worker r's bytes (in the lane's scratch). Two rounds: 8 bytes a worker for the sizes, then all
// payloads padded to the longest. payloads.size() is the world size. Sizes above `largest`, which every worker's reader
// computes for itself, are refused with PayloadError.
Exchange gather_varied(std::span<const std::byte> mine, std::size_t largest, std::span<std::span<const std::byte>> payloads,
                       Context& context);

}  // namespace thinwire
