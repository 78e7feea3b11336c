#include "thinwire/step_time.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "communicators/transfers.h"

namespace thinwire {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kSegment = kBetweenHostsSegments.bytes;

// Serves all that are there at once, each as fast as the others: with n there, each gets an n-th of it.
class Station {
 public:
  void enter(std::size_t bucket, double seconds) { served_.push_back({bucket, seconds}); }
  std::size_t size() const { return served_.size(); }

  // Seconds until the first of them is done, if nobody else enters.
  double next() const {
    const auto first = std::ranges::min_element(served_, {}, &Served::left);
    return first == served_.end() ? kNever : first->left * static_cast<double>(served_.size());
  }

  // Appends to `done` those that are done after so many seconds, no more than next().
  void pass(double seconds, std::vector<std::size_t>& done) {
    if (served_.empty()) return;
    const double left = std::ranges::min(served_, {}, &Served::left).left;
    const bool ends = seconds >= next();
    const double each = ends ? left : seconds / static_cast<double>(served_.size());
    for (Served& one : served_) {
      one.left -= each;
      if (ends && one.left <= 0) done.push_back(one.bucket);
    }
    if (ends) std::erase_if(served_, [](const Served& one) { return one.left <= 0; });
  }

 private:
  struct Served {
    std::size_t bucket;
    double left;
  };
  std::vector<Served> served_;
};

class Simulation {
 public:
  Simulation(const StepCost& step, std::span<const BucketCost> buckets)
      : step_(step), buckets_(buckets), lanes_(static_cast<std::size_t>(step.lanes)), states_(buckets.size()) {}

  StepTime run() {
    begin_what_can();
    while (decoded_ < buckets_.size() || computes()) {
      pass(std::min({until_served(), link_.next(), next_ready(), next_arrival(), until_computed()}));
      begin_what_can();
    }
    time_.seconds = std::max(now_, computed_at_);
    time_.waiting_seconds = time_.seconds - computed_at_;
    return time_;
  }

 private:
  // What the processor has yet to do for a bucket, over and over until all rounds are sent.
  enum class Job { kNone, kCompute, kSend, kDone };

  struct State {
    Job job = Job::kNone;
    int round = 0;            // that is sent next, or is being sent
    double arrives = kNever;  // when its round is over, once the link is done with it
    bool has_arrived = false;
    bool is_sent = false;     // as far as the processor is concerned
  };

  bool computes() const { return computed_ < step_.compute_seconds; }
  // What the computation has of cores that are not idle. It is a thread among those that encode, send and decode.
  double share() const { return computes() ? (1 - step_.hidden) / static_cast<double>(processor_.size() + 1) : 0; }
  // How fast the computation goes on, and the processor's station.
  double pace() const { return processor_.size() > 0 ? step_.hidden + share() : 1; }
  double processor_pace() const { return 1 - share(); }

  double until(double computed) const { return computed <= computed_ ? 0 : (computed - computed_) / pace(); }
  double until_computed() const { return computes() ? until(step_.compute_seconds) : kNever; }
  double until_served() const { return processor_.size() > 0 ? processor_.next() / processor_pace() : kNever; }
  double next_ready() const { return next_ < buckets_.size() && computed_ < buckets_[next_].ready_seconds ? until(buckets_[next_].ready_seconds) : kNever; }
  double next_arrival() const {
    double first = kNever;
    for (const State& state : states_)
      if (!state.has_arrived) first = std::min(first, state.arrives);
    return first - now_;
  }

  void pass(double seconds) {
    seconds = std::max(seconds, 0.0);
    const bool computation_ends = seconds >= until_computed(), is_served = seconds >= until_served();
    const double ready = next_ready() <= seconds ? buckets_[next_].ready_seconds : 0;  // reached exactly, whatever rounding says
    const double computed = computed_ + seconds * pace();  // before others come or go
    served_.clear();
    sent_.clear();
    processor_.pass(is_served ? processor_.next() : seconds * processor_pace(), served_);
    link_.pass(seconds, sent_);
    computed_ = computation_ends ? step_.compute_seconds : computes() ? std::max(ready, computed) : computed_;
    now_ += seconds;
    if (computation_ends) computed_at_ = now_;
    for (const std::size_t bucket : sent_) states_[bucket].arrives = now_ + latency(buckets_[bucket]);
    for (const std::size_t bucket : served_) finish(bucket);
    for (std::size_t bucket = 0; bucket < states_.size(); ++bucket) arrive(bucket);
  }

  // Buckets go to their lanes in order, as soon as they are ready and the lane is free.
  void begin_what_can() {
    for (; next_ < buckets_.size() && buckets_[next_].ready_seconds <= computed_; ++next_) waiting_.push_back(next_);
    std::erase_if(waiting_, [&](std::size_t bucket) {
      if (bucket >= lanes_ && states_[bucket - lanes_].job != Job::kDone) return false;
      compute(bucket);
      return true;
    });
  }

  // Of a round. A hop begins when the first segment of the one before has arrived; what follows that one, and the hops of a host's other rings, keep the
  // link busy meanwhile.
  double latency(const BucketCost& bucket) const {
    if (bucket.rounds == 0) return 0;
    const int hops = std::max(bucket.hops, bucket.rounds);
    const double of_hop = bucket.bytes / hops, behind_first = (step_.senders * of_hop - std::min(of_hop, kSegment)) / step_.link.bytes_per_second;
    return step_.link.round_seconds + (static_cast<double>(hops) / bucket.rounds - 1) * std::max(0.0, step_.link.round_seconds - behind_first);
  }

  int rounds_of(std::size_t bucket) const { return std::max(1, buckets_[bucket].rounds); }

  // Before the round at hand, or behind all.
  void compute(std::size_t bucket) {
    const BucketCost& cost = buckets_[bucket];
    const int round = states_[bucket].round, rounds = rounds_of(bucket);
    const double seconds = round == 0 ? cost.encode_seconds : round < rounds ? cost.between_seconds / (rounds - 1) : cost.decode_seconds;
    time_.codec_seconds += seconds;
    states_[bucket].job = Job::kCompute;
    processor_.enter(bucket, seconds);
  }

  void send(std::size_t bucket) {
    State& state = states_[bucket];
    const double bytes = buckets_[bucket].bytes / rounds_of(bucket);
    const double on_link = step_.senders * bytes / step_.link.bytes_per_second, at_processor = bytes * step_.sending_seconds;
    time_.wire_seconds += on_link;
    time_.sending_seconds += at_processor;
    state = {.job = Job::kSend, .round = state.round};
    link_.enter(bucket, on_link);
    processor_.enter(bucket, at_processor);
  }

  // What the processor has been at.
  void finish(std::size_t bucket) {
    State& state = states_[bucket];
    if (state.job == Job::kSend) {
      state.is_sent = true;
    } else if (state.round < rounds_of(bucket)) {
      send(bucket);
    } else {
      state.job = Job::kDone;
      ++decoded_;
    }
  }

  void arrive(std::size_t bucket) {
    State& state = states_[bucket];
    state.has_arrived = state.has_arrived || state.arrives <= now_;
    if (state.job != Job::kSend || !state.is_sent || !state.has_arrived) return;
    ++state.round;
    compute(bucket);
  }

  const StepCost& step_;
  std::span<const BucketCost> buckets_;
  std::size_t lanes_;
  std::vector<State> states_;
  Station processor_, link_;
  std::vector<std::size_t> waiting_;  // for their lanes
  std::vector<std::size_t> served_, sent_;
  std::size_t next_ = 0, decoded_ = 0;  // the first that is not ready; and how many are done
  double now_ = 0, computed_ = 0, computed_at_ = 0;
  StepTime time_;
};

}  // namespace

StepTime predict_step(const StepCost& step, std::span<const BucketCost> buckets) { return Simulation(step, buckets).run(); }

}  // namespace thinwire
