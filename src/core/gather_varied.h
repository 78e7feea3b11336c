// A gather of payloads whose lengths differ from worker to worker.
#pragma once

#include <cstddef>
#include <span>

#include "core/context.h"
#include "core/exchange.h"

namespace thinwire {

// To be called with what a gather brought back of this worker's own announcement (a size, a count), which says how much it is
// going to write into room made for what was announced. Throws PayloadError if it is not what was sent.
void expect_own(std::span<const std::byte> sent, std::span<const std::byte> returned, const char* what);

// Fills payloads[r] with worker r's bytes (in the lane's scratch). Two rounds: 8 bytes a worker for the sizes, then all
// payloads padded to the longest. payloads.size() is the world size. Sizes above `largest`, which every worker's reader
// computes for itself, are refused with PayloadError.
Exchange gather_varied(std::span<const std::byte> mine, std::size_t largest, std::span<std::span<const std::byte>> payloads,
                       Context& context);

}  // namespace thinwire
