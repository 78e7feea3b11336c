// What a worker did when: for timelines that show how encoding, transfer and decoding overlap.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace thinwire {

struct TraceEvent {
  std::string name;  // "setup", "encode", "decode", or the collective: "gather of 1024 bytes"
  bool wire = false;  // a collective, from when it was asked for until its result was there
  int lane = 0;
  double begin = 0, end = 0;  // seconds of std::chrono::steady_clock, which processes of one machine share
};

// Collects the events of all lanes; for any number of threads.
class Trace {
 public:
  void add(TraceEvent event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }

  // Returns what was collected since the last call, in no particular order.
  std::vector<TraceEvent> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<TraceEvent> events_;
};

}  // namespace thinwire
