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

  // perform() in parts, for a thread that serves several lanes: start() begins a collective, which stays where it is until is_done() has
  // returned true or thrown; wait() returns when that is worth asking again. Communicators that know no parts do everything in start().
  virtual void start(const Collective& collective) { perform(collective); }
  virtual bool is_done() { return true; }
  virtual void wait() {}
  // Whether a collective makes progress while nobody is within these functions. Else one thread serves all lanes (run_lanes).
  virtual bool moves_alone() const { return true; }

  // On the clock that this group's time passes on: a simulated network has its own.
  virtual double seconds() const;

  // Tells the other workers that this one will issue no more collectives; they fail at once instead of waiting.
  virtual void abandon() noexcept = 0;
};

// A group of workers that are threads of this process, in rank order; each end goes to one thread. The embedded default
// and the ground of the tests. Sums are taken in rank order, so they have the same bits on every worker and in every run.
// hosts: as in ReducerOptions.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(
    int world_size, std::chrono::milliseconds timeout = std::chrono::minutes(5), std::span<const int> hosts = {});

}  // namespace thinwire
