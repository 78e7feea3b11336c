#include "thinwire/step_time.h"

#include <algorithm>
#include <cstddef>
#include <queue>
#include <tuple>
#include <vector>

namespace thinwire {
namespace {

enum class Stop { kReady, kReceived, kCoded };

struct Event {
  double seconds = 0;
  Stop stop = Stop::kReady;
  std::size_t bucket = 0;
  bool operator>(const Event& other) const { return std::tie(seconds, stop, bucket) > std::tie(other.seconds, other.stop, other.bucket); }
};

class Simulation {
 public:
  Simulation(const StepCost& step, std::span<const BucketCost> buckets)
      : step_(step),
        buckets_(buckets),
        lanes_(static_cast<std::size_t>(step.lanes)),
        is_ready_(buckets.size()),
        is_encoded_(buckets.size()),
        is_done_(buckets.size()) {}

  StepTime run() {
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) events_.push({ready(bucket), Stop::kReady, bucket});
    while (!events_.empty()) {
      // Whatever happens at one time has happened before the codec goes on, as that delays what is not ready yet.
      const double now = events_.top().seconds;
      while (!events_.empty() && events_.top().seconds <= now) {
        const Event event = events_.top();
        events_.pop();
        happen(event);
      }
      if (!is_coding_ && !waiting_.empty()) code(now);
    }
    const double computed = step_.compute_seconds + delay_;
    time_.seconds = std::max(end_, computed);
    time_.waiting_seconds = time_.seconds - computed;
    return time_;
  }

 private:
  double ready(std::size_t bucket) const { return buckets_[bucket].ready_seconds + delay_; }

  void happen(const Event& event) {
    if (event.stop == Stop::kCoded) {
      is_coding_ = false;
      finish(event.bucket, event.seconds);
    } else if (event.stop == Stop::kReceived) {
      waiting_.push(event.bucket);
    } else if (ready(event.bucket) > event.seconds) {
      events_.push({ready(event.bucket), Stop::kReady, event.bucket});  // the computation has been delayed since
    } else {
      is_ready_[event.bucket] = true;
      if (event.bucket < lanes_ || is_done_[event.bucket - lanes_]) waiting_.push(event.bucket);
    }
  }

  void code(double now) {
    const std::size_t bucket = waiting_.front();
    waiting_.pop();
    const double service = is_encoded_[bucket] ? buckets_[bucket].decode_seconds : buckets_[bucket].encode_seconds;
    if (now < step_.compute_seconds + delay_) delay_ += (1 - step_.hidden) * service;
    time_.codec_seconds += service;
    is_coding_ = true;
    events_.push({now + service, Stop::kCoded, bucket});
  }

  // What the codec has been at.
  void finish(std::size_t bucket, double now) {
    if (is_encoded_[bucket]) {
      is_done_[bucket] = true;
      end_ = now;
      if (const std::size_t next = bucket + lanes_; next < buckets_.size() && is_ready_[next]) waiting_.push(next);
      return;
    }
    is_encoded_[bucket] = true;
    const double service = buckets_[bucket].bytes / step_.link.bytes_per_second;
    time_.wire_seconds += service;
    link_free_ = std::max(now, link_free_) + service;
    events_.push({link_free_ + buckets_[bucket].rounds * step_.link.round_seconds, Stop::kReceived, bucket});
  }

  const StepCost& step_;
  std::span<const BucketCost> buckets_;
  std::size_t lanes_;
  std::vector<bool> is_ready_, is_encoded_, is_done_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::queue<std::size_t> waiting_;  // for the codec
  bool is_coding_ = false;
  double link_free_ = 0, end_ = 0;
  double delay_ = 0;  // of the computation, so far
  StepTime time_;
};

}  // namespace

StepTime predict_step(const StepCost& step, std::span<const BucketCost> buckets) { return Simulation(step, buckets).run(); }

}  // namespace thinwire
