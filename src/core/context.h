// What an exchange knows of its surroundings, and the collectives it may await.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/exchange.h"
#include "core/scratch.h"
#include "core/thread_pool.h"
#include "thinwire/collective.h"
#include "thinwire/link.h"
#include "thinwire/trace.h"

namespace thinwire {

// Parts of an exchange that are timed apart.
enum class Phase : std::uint8_t { kSetup, kEncode, kDecode };

// Counts the seconds an exchange spends in each phase, while it runs, and tells a trace if there is one.
class PhaseClock {
 public:
  void observe(Trace* trace, int lane) {
    trace_ = trace;
    lane_ = lane;
  }
  void start() { since_ = Clock::now(); }
  void stop() {
    const Clock::time_point now = Clock::now();
    seconds_[static_cast<std::size_t>(phase_)] += std::chrono::duration<double>(now - since_).count();
    if (trace_) trace_->add({kNames[static_cast<std::size_t>(phase_)], false, lane_, in_seconds(since_), in_seconds(now)});
    since_ = now;
  }
  void enter(Phase phase) {
    stop();
    phase_ = phase;
  }
  double seconds(Phase phase) const { return seconds_[static_cast<std::size_t>(phase)]; }

  using Clock = std::chrono::steady_clock;
  static double in_seconds(Clock::time_point time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

 private:
  static constexpr std::array<const char*, 3> kNames = {"setup", "encode", "decode"};
  Trace* trace_ = nullptr;
  int lane_ = 0;
  Phase phase_ = Phase::kEncode;
  Clock::time_point since_{};
  std::array<double, 3> seconds_{};
};

// A worker among those that it exchanges with.
struct Membership {
  Group group = Group::kAll;
  int rank = 0;
  int world_size = 1;
  std::uint64_t seed = 0;  // theirs
};

class Context {
 public:
  Context(const Membership& membership, Scratch& scratch, ThreadPool& threads)
      : membership_(membership), scratch_(&scratch), threads_(&threads) {}

  // The collectives awaited from now on are of these workers.
  void join(const Membership& membership) { membership_ = membership; }
  int rank() const { return membership_.rank; }
  int world_size() const { return membership_.world_size; }
  std::uint64_t seed() const { return membership_.seed; }
  Scratch& scratch() { return *scratch_; }
  // For loops over pieces. Scratch is taken outside of them, and what they add up is added afterwards, in the pieces' order.
  ThreadPool& threads() { return *threads_; }

  // Time is counted for this phase from now on; a strategy says when decoding begins.
  void enter(Phase phase) { clock_.enter(phase); }
  PhaseClock& clock() { return clock_; }

  // What is known of the link, the same on every worker.
  Link link;

  // What the collectives awaited from now on are for.
  Purpose purpose = Purpose::kPayload;

  // Floats of another message of the bucket that wait to be summed over all workers. What sends payloads of its own may take them
  // along: then they are sums when it comes to its commit point, and none are left here.
  std::span<float> riders;

  // Out: some worker's values, or a mean, are not finite, or a mean cannot be stored. All workers find the same. The exchange then
  // ends without a commit point, and nothing was changed.
  bool any_non_finite = false;
  // Out: a mean that this worker alone was to get cannot be stored. The others do not know, and have a commit point.
  bool own_mean_lost = false;

  // To be awaited before anything is changed. is_stage: of the message's Work.
  CommitPoint commit_point(bool is_stage) const { return CommitPoint(is_stage); }

  Await sum(std::span<float> values) { return in_place(CollectiveKind::kSum, ElementType::kFloat32, values); }
  Await sum(std::span<std::int32_t> values) { return in_place(CollectiveKind::kSum, ElementType::kInt32, values); }
  // Sums of 16-bit floats: `type` is kBfloat16 or kFloat16.
  Await sum(std::span<std::uint16_t> halves, ElementType type) { return in_place(CollectiveKind::kSum, type, halves); }
  Await max(std::span<float> values) { return in_place(CollectiveKind::kMax, ElementType::kFloat32, values); }
  Await max(std::span<std::int32_t> values) { return in_place(CollectiveKind::kMax, ElementType::kInt32, values); }
  Await unite(std::span<std::uint32_t> bits) { return in_place(CollectiveKind::kUnite, ElementType::kUint32, bits); }

  // all: world_size() times mine.size() bytes, which is the same on every worker.
  Await gather(std::span<std::byte> mine, std::span<std::byte> all) { return moving(CollectiveKind::kGather, mine, all); }
  // shards and mine: world_size() shards of equal length each.
  Await scatter(std::span<std::byte> shards, std::span<std::byte> mine) {
    return moving(CollectiveKind::kScatter, shards, mine);
  }
  Await broadcast(std::span<std::byte> bytes, int root) {
    return Await({.kind = CollectiveKind::kBroadcast, .purpose = purpose, .group = membership_.group, .root = root, .data = bytes,
                  .result = {}});
  }

 private:
  template <class T>
  Await in_place(CollectiveKind kind, ElementType type, std::span<T> values) const {
    return Await({.kind = kind, .type = type, .purpose = purpose, .group = membership_.group, .data = std::as_writable_bytes(values),
                  .result = {}});
  }
  Await moving(CollectiveKind kind, std::span<std::byte> data, std::span<std::byte> result) const {
    return Await({.kind = kind, .purpose = purpose, .group = membership_.group, .data = data, .result = result});
  }

  Membership membership_;
  Scratch* scratch_;
  ThreadPool* threads_;
  PhaseClock clock_;
};

}  // namespace thinwire
