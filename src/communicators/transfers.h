// Which segments a worker sends and receives to perform a collective, message by message.
#pragma once

#include <cstddef>
#include <vector>

#include "thinwire/collective.h"

namespace thinwire {

// How a collective's data is cut into messages: the longest, and how many are on their way at once, in each direction of a lane.
struct Segments {
  std::size_t bytes;
  std::size_t window;
};
// Between hosts. With what stands before it, a segment stays below 64 KiB: up to that MPI libraries send over TCP at once, where they
// ask the receiver first whether longer ones may come; on a busy link each step of a ring would wait for the answer.
inline constexpr Segments kBetweenHostsSegments = {60 << 10, 16};
// Within one, where MPI asks for any, and each message takes the processor.
inline constexpr Segments kWithinHostSegments = {256 << 10, 4};

struct Transfer {
  // Where a received segment goes.
  enum class Into : unsigned char {
    kData,      // replaces it
    kCombined,  // is combined with it
    kResult,
    kEveryones,  // all workers' data, one behind the other, which are combined at the end
  };
  static constexpr std::size_t kNothing = static_cast<std::size_t>(-1);

  int peer = 0;
  std::size_t offset = 0;  // of a sent segment: in the collective's data, or its result
  std::size_t bytes = 0;
  Into into = Into::kData;       // received only
  std::size_t after = kNothing;  // sent only: the receive that must be done first
};

// Between two workers, messages are sent in the order in which they are received.
struct TransferPlan {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  bool sends_result = false;  // which has this worker's own part from the beginning
  bool combine_everyones = false;
};

// Large sums, maxima and unions go around a ring: each worker's part of the data is combined on its way, then passed on.
// Large gathers do too, part after part. Small ones, and scatters, go straight to every other worker, to the next ones first. A broadcast goes
// along a chain. Large sums are not taken in rank order, but have the same bits on every worker and in every run.
void plan_transfers(const Collective& collective, int rank, int world_size, std::size_t segment_bytes, TransferPlan& plan);

// Of the messages of a collective: how many wait for one another.
int hops_of(const Collective& collective, int world_size);

}  // namespace thinwire
