// Gathers and scatters of payloads whose lengths differ.
//
// Every payload travels behind an announcement, which says its length. Workers agree beforehand on how many bytes of each go in the first
// round, `usual`; where some are longer, all know from it how long the longest is, and a second one moves the rest of all of them. So
// payloads whose lengths can be foreseen take one round.
#pragma once

#include <cstddef>
#include <span>

#include "core/context.h"
#include "core/exchange.h"

namespace thinwire {

// To be called with what a gather brought back of this worker's own announcement (a size, a count), which says how much it is
// going to write into room made for what was announced. Throws PayloadError if it is not what was sent.
void expect_own(std::span<const std::byte> sent, std::span<const std::byte> returned, const char* what);

// Before every payload go so many bytes more.
constexpr std::size_t kAnnouncementBytes = 8;

// How long payloads are: usually, which all workers know, and at most. Longer ones are refused with PayloadError.
struct PayloadLengths {
  std::size_t usual = 0;
  std::size_t most = 0;
};

std::size_t longest_of(std::span<const std::span<const std::byte>> payloads);

// Fills payloads[r] with worker r's bytes (in the lane's scratch). payloads.size() is the world size, and mine.size() at most
// lengths.most.
Exchange gather_varied(std::span<const std::byte> mine, PayloadLengths lengths, std::span<std::span<const std::byte>> payloads,
                       Context& context);

// Sends shards[r] to worker r and fills payloads[r] with what worker r has sent to this one (in the lane's scratch). longest: out, of
// all that any worker has sent to any other; it and what the others refer to outlive the exchange.
Exchange scatter_varied(std::span<const std::span<const std::byte>> shards, PayloadLengths lengths,
                        std::span<std::span<const std::byte>> payloads, std::size_t& longest, Context& context);

}  // namespace thinwire
