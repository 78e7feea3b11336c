// A reduction's own state: its exchange, its lane, and what it has counted so far.
#pragma once

#include <chrono>
#include <mutex>
#include <string>

#include "core/frame_pool.h"
#include "core/host_groups.h"
#include "reducer/bucket_reduction.h"

namespace thinwire {

// Where finished and abandoned reductions leave their figures.
class CounterTotal {
 public:
  void add(const Counters& counters);
  Counters get() const;

 private:
  mutable std::mutex mutex_;
  Counters total_;
};

struct Reduction::State {
  State(Lane& the_lane, const StepGround& the_ground, CounterTotal& the_total, const Context& the_context, Trace* the_trace,
        int the_lane_number, const HostGroups& the_groups)
      : lane(the_lane), ground(the_ground), total(the_total), context(the_context), trace(the_trace), lane_number(the_lane_number), groups(the_groups) {
    lane.busy = true;
    context.clock().observe(trace, lane_number);
  }
  ~State() { break_off(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  static void* operator new(std::size_t bytes) { return take_frame(bytes); }
  static void operator delete(void* memory, std::size_t bytes) noexcept { return_frame(memory, bytes); }

  const Collective* next();
  void finish();
  void break_off();
  void count(const Collective& collective);

  Lane& lane;
  const StepGround& ground;
  Step* step = nullptr;  // that it belongs to; null for none
  CounterTotal& total;
  Context context;
  Trace* trace;
  int lane_number;
  const HostGroups& groups;
  std::string on_the_wire;  // for the trace
  Counters counters;
  bool finished = false;
  bool failed = false;   // next() has thrown
  bool waiting = false;  // a collective was handed out
  std::chrono::steady_clock::time_point handed_out{};
  Exchange exchange;
};

}  // namespace thinwire
