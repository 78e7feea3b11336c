#include "thinwire/step_time.h"

#include <algorithm>
#include <cstddef>
#include <queue>
#include <tuple>
#include <vector>

namespace thinwire {
namespace {

enum class Stop { kReady, kReceived, kServed };

struct Event {
  double seconds = 0;
  Stop stop = Stop::kReady;
  std::size_t bucket = 0;
  bool operator>(const Event& other) const { return std::tie(seconds, stop, bucket) > std::tie(other.seconds, other.stop, other.bucket); }
};

// What the processor has yet to do for a bucket, in this order; done with it, it is decoded.
enum class Job { kEncode, kSend, kDecode, kNone };

class Simulation {
 public:
  Simulation(const StepCost& step, std::span<const BucketCost> buckets)
      : step_(step), buckets_(buckets), lanes_(static_cast<std::size_t>(step.lanes)), states_(buckets.size()) {}

  StepTime run() {
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) events_.push({ready(bucket), Stop::kReady, bucket});
    while (!events_.empty()) {
      // Whatever happens at one time has happened before the processor goes on, as that delays what is not ready yet.
      const double now = events_.top().seconds;
      while (!events_.empty() && events_.top().seconds <= now) {
        const Event event = events_.top();
        events_.pop();
        happen(event);
      }
      if (!is_serving_ && !waiting_.empty()) serve(now);
    }
    const double computed = step_.compute_seconds + delay_;
    time_.seconds = std::max(end_, computed);
    time_.waiting_seconds = time_.seconds - computed;
    return time_;
  }

 private:
  struct State {
    bool is_ready = false;
    bool is_received = false;  // as far as the link is concerned
    Job next = Job::kEncode;
  };

  double ready(std::size_t bucket) const { return buckets_[bucket].ready_seconds + delay_; }
  double service(std::size_t bucket) const {
    const BucketCost& cost = buckets_[bucket];
    const Job job = states_[bucket].next;
    return job == Job::kEncode ? cost.encode_seconds : job == Job::kSend ? cost.bytes * step_.sending_seconds : cost.decode_seconds;
  }

  void happen(const Event& event) {
    State& state = states_[event.bucket];
    if (event.stop == Stop::kServed) {
      is_serving_ = false;
      finish(event.bucket, event.seconds);
    } else if (event.stop == Stop::kReceived) {
      state.is_received = true;
      if (state.next == Job::kDecode) waiting_.push(event.bucket);
    } else if (ready(event.bucket) > event.seconds) {
      events_.push({ready(event.bucket), Stop::kReady, event.bucket});  // the computation has been delayed since
    } else {
      state.is_ready = true;
      if (event.bucket < lanes_ || states_[event.bucket - lanes_].next == Job::kNone) waiting_.push(event.bucket);
    }
  }

  void serve(double now) {
    const std::size_t bucket = waiting_.front();
    waiting_.pop();
    const double seconds = service(bucket);
    if (now < step_.compute_seconds + delay_) delay_ += (1 - step_.hidden) * seconds;
    (states_[bucket].next == Job::kSend ? time_.sending_seconds : time_.codec_seconds) += seconds;
    is_serving_ = true;
    events_.push({now + seconds, Stop::kServed, bucket});
  }

  // What the processor has been at.
  void finish(std::size_t bucket, double now) {
    State& state = states_[bucket];
    if (state.next == Job::kEncode) {
      send(bucket, now);
      state.next = step_.sending_seconds > 0 ? Job::kSend : Job::kDecode;
      if (state.next == Job::kSend) waiting_.push(bucket);
    } else if (state.next == Job::kSend) {
      state.next = Job::kDecode;
      if (state.is_received) waiting_.push(bucket);
    } else {
      state.next = Job::kNone;
      end_ = now;
      if (const std::size_t next = bucket + lanes_; next < buckets_.size() && states_[next].is_ready) waiting_.push(next);
    }
  }

  void send(std::size_t bucket, double now) {
    const double seconds = buckets_[bucket].bytes / step_.link.bytes_per_second;
    time_.wire_seconds += seconds;
    link_free_ = std::max(now, link_free_) + seconds;
    events_.push({link_free_ + buckets_[bucket].rounds * step_.link.round_seconds, Stop::kReceived, bucket});
  }

  const StepCost& step_;
  std::span<const BucketCost> buckets_;
  std::size_t lanes_;
  std::vector<State> states_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::queue<std::size_t> waiting_;  // for the processor
  bool is_serving_ = false;
  double link_free_ = 0, end_ = 0;
  double delay_ = 0;  // of the computation, so far
  StepTime time_;
};

}  // namespace

StepTime predict_step(const StepCost& step, std::span<const BucketCost> buckets) { return Simulation(step, buckets).run(); }

}  // namespace thinwire
