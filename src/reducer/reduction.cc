#include "reducer/reduction.h"

#include <numeric>
#include <vector>

#include "communicators/check_collective.h"
#include "core/float_environment.h"
#include "thinwire/errors.h"

namespace thinwire {

void CounterTotal::add(const Counters& counters) {
  const std::lock_guard lock(mutex_);
  total_.reductions += counters.reductions;
  total_.rounds += counters.rounds;
  total_.elements += counters.elements;
  total_.compressed_elements += counters.compressed_elements;
  total_.setup_bytes += counters.setup_bytes;
  total_.payload_bytes += counters.payload_bytes;
  total_.second_bytes += counters.second_bytes;
  total_.traffic_bytes += counters.traffic_bytes;
  total_.plain_traffic_bytes += counters.plain_traffic_bytes;
  total_.within_host_bytes += counters.within_host_bytes;
  total_.row_traffic_bytes += counters.row_traffic_bytes;
  total_.row_elements += counters.row_elements;
  total_.fallbacks += counters.fallbacks;
  total_.non_finite += counters.non_finite;
  total_.failed_steps += counters.failed_steps;
  total_.setup_seconds += counters.setup_seconds;
  total_.encode_seconds += counters.encode_seconds;
  total_.wire_seconds += counters.wire_seconds;
  total_.decode_seconds += counters.decode_seconds;
  total_.measured_energy += counters.measured_energy;
  total_.error_energy += counters.error_energy;
}

Counters CounterTotal::get() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

// The exchange has changed nothing yet.
void Reduction::State::break_off() {
  if (finished) return;
  { const Exchange ended = std::move(exchange); }
  if (step) {
    step->fail();
    if (step == &lane.own_step) step->finish(ground);
  }
  finish();
}

// Gives the lane back, and the figures away.
void Reduction::State::finish() {
  if (finished) return;
  finished = true;
  { const Exchange ended = std::move(exchange); }
  counters.setup_seconds = context.clock().seconds(Phase::kSetup);
  counters.encode_seconds = context.clock().seconds(Phase::kEncode);
  counters.decode_seconds = context.clock().seconds(Phase::kDecode);
  total.add(counters);
  lane.busy = false;
}

const Collective* Reduction::State::next() {
  if (failed) throw Error("this reduction has failed before; its gradients hold no mean");
  if (finished) return nullptr;
  const FloatEnvironment environment;
  const auto now = std::chrono::steady_clock::now();
  if (waiting) {
    counters.wire_seconds += std::chrono::duration<double>(now - handed_out).count();
    if (trace) trace->add({on_the_wire, true, lane_number, PhaseClock::in_seconds(handed_out), PhaseClock::in_seconds(now)});
  }
  waiting = false;
  context.clock().start();
  const Collective* collective = nullptr;
  try {
    collective = exchange.next();
  } catch (...) {
    failed = true;
    break_off();
    throw;
  }
  context.clock().stop();
  if (!collective) {
    if (step == &lane.own_step && step && !step->finish(ground)) ++counters.failed_steps;
    finish();
    return nullptr;
  }
  count(*collective);
  waiting = true;
  if (trace) on_the_wire = describe(*collective);
  handed_out = std::chrono::steady_clock::now();
  return collective;
}

void Reduction::State::count(const Collective& collective) {
  const double sent = thinwire::traffic_bytes(collective, groups.size(collective.group));
  if (collective.group == Group::kWithinHost) {
    counters.within_host_bytes += sent;
    return;
  }
  ++counters.rounds;
  counters.traffic_bytes += sent;
  switch (collective.purpose) {
    case Purpose::kSetup:
      counters.setup_bytes += collective.data.size();
      break;
    case Purpose::kPayload:
      counters.payload_bytes += collective.data.size();
      break;
    case Purpose::kSecond:
      counters.second_bytes += collective.data.size();
      break;
  }
}

Reduction::Reduction(std::unique_ptr<State> state) : state_(std::move(state)) {}
Reduction::Reduction(Reduction&&) noexcept = default;
Reduction& Reduction::operator=(Reduction&&) noexcept = default;
Reduction::~Reduction() = default;

const Collective* Reduction::next() { return state_ ? state_->next() : nullptr; }

void run(Reduction& reduction, Communicator& communicator) {
  while (const Collective* collective = reduction.next()) communicator.perform(*collective);
}

void run_lanes(std::span<const std::unique_ptr<Communicator>> lanes, const std::function<std::optional<Reduction>(std::size_t)>& next_of) {
  struct Served {
    std::optional<Reduction> reduction;
    bool waits = false;  // for a collective
  };
  std::vector<Served> all(lanes.size());
  // Goes as far as it goes without waiting; whether it will go on.
  const auto advance = [&](std::size_t index) {
    Served& lane = all[index];
    while (true) {
      if (lane.waits && !lanes[index]->is_done()) return true;
      if (!lane.waits && !lane.reduction && !(lane.reduction = next_of(index))) return false;
      const Collective* collective = lane.reduction->next();
      lane.waits = collective != nullptr;
      if (collective) lanes[index]->start(*collective);
      else lane.reduction.reset();
    }
  };
  std::vector<std::size_t> unfinished(lanes.size());
  std::iota(unfinished.begin(), unfinished.end(), 0);
  while (!unfinished.empty()) {
    std::erase_if(unfinished, [&](std::size_t index) { return !advance(index); });
    if (!unfinished.empty()) lanes[unfinished.front()]->wait();
  }
}

}  // namespace thinwire
