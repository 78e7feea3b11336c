// The common parameter `reduce` of gather-only compressors: by which strategy their codes are averaged.
#pragma once

#include <cstdint>
#include <string_view>

#include "compressors/shared/codec.h"
#include "core/context.h"
#include "core/exchange.h"
#include "core/work.h"

namespace thinwire {

enum class Reduce {
  kGather,   // gather_and_average
  kScatter,  // scatter_reduce
  kAuto,     // whichever is sooner done, by the link if it is known; the same choice on every worker
};

// `text`: "gather", "scatter" or "auto".
Reduce reduce_of(std::string_view text);

// What a worker sends for an entry whose code takes so many bits, at most: where owners average, the mean's code too.
double bits_sent(double bits, std::string_view reduce);

// For Compressor::fewest_chunk_elements(), of codes that can do with chunks of `least`: where all send everything to all, short ones save nothing.
constexpr std::uint64_t fewest_chunk_elements(Reduce reduce, std::uint64_t least) { return reduce == Reduce::kGather ? kChunkElements : least; }

// To owners or from them.
Exchange exchange_by_owners(const Codec& codec, Work& work, Context& context);

// In any direction; to all by `reduce`.
Exchange reduce_coded(const Codec& codec, Reduce reduce, Work& work, Context& context);

}  // namespace thinwire
