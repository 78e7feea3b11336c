// Communicators move bytes; they know no algorithm.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "thinwire/collective.h"

namespace thinwire {

// One worker's end of a group. A lane uses one communicator and issues its collectives in the same order on every
// worker; a communicator is not shared between threads.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // Returns when the collective's result is in place on this worker. Throws PeerError when another worker is lost, late
  // beyond the timeout, has failed, or issued another collective; after that, every further call throws as well. Throws
  // ArgumentError for a group of which this was not told: what is made without hosts knows Group::kAll alone.
  virtual void perform(const Collective& collective) = 0;

  // Tells the other workers that this one will issue no more collectives; they fail at once instead of waiting.
  virtual void abandon() noexcept = 0;
};

// A group of workers that are threads of this process, in rank order; each end goes to one thread. The embedded default
// and the ground of the tests. Sums are taken in rank order, so they have the same bits on every worker and in every run.
// hosts: as in ReducerOptions.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(
    int world_size, std::chrono::milliseconds timeout = std::chrono::minutes(5), std::span<const int> hosts = {});

}  // namespace thinwire
