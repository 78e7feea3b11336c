// The prediction of a step's time, against cases by hand and against a clock that ticks.
#include "thinwire/step_time.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace thinwire {
namespace {

constexpr Link kLink{.bytes_per_second = 100, .round_seconds = 0.5};

TEST(StepTime, WithoutBucketsIsTheComputation) {
  const StepTime time = predict_step({.compute_seconds = 3, .lanes = 2, .link = kLink}, {});
  EXPECT_EQ(time.seconds, 3);
  EXPECT_EQ(time.waiting_seconds, 0);
}

// Ready at 2; encoded at 3, as the computation is: it ends at 5 with encoding; sent at 5, received at 6, decoded at 6.25.
TEST(StepTime, OneBucketGoesThroughItsStations) {
  const std::vector<BucketCost> buckets = {{.ready_seconds = 2, .encode_seconds = 1, .decode_seconds = 0.25, .rounds = 2, .bytes = 200}};
  const StepTime time = predict_step({.compute_seconds = 4, .hidden = 0, .lanes = 1, .link = kLink}, buckets);
  EXPECT_DOUBLE_EQ(time.seconds, 6.25);
  EXPECT_DOUBLE_EQ(time.waiting_seconds, 1.25);
  EXPECT_DOUBLE_EQ(time.codec_seconds, 1.25);
  EXPECT_DOUBLE_EQ(time.wire_seconds, 2);
  EXPECT_DOUBLE_EQ(predict_step({.compute_seconds = 4, .hidden = 1, .lanes = 1, .link = kLink}, buckets).waiting_seconds, 2.25);
}

// The link has it from 1 to 3, and sending takes the processor until 5, before it decodes; or until 2, and the link is what it waits for.
TEST(StepTime, SendingTakesTheProcessorWhileTheLinkIsBusy) {
  const std::vector<BucketCost> bucket = {{.encode_seconds = 1, .decode_seconds = 0.25, .rounds = 1, .bytes = 200}};
  const StepTime time = predict_step({.sending_seconds = 0.02, .lanes = 1, .link = kLink}, bucket);
  EXPECT_DOUBLE_EQ(time.seconds, 5.25);
  EXPECT_DOUBLE_EQ(time.sending_seconds, 4);
  EXPECT_DOUBLE_EQ(time.codec_seconds, 1.25);
  EXPECT_DOUBLE_EQ(predict_step({.sending_seconds = 0.005, .lanes = 1, .link = kLink}, bucket).seconds, 3.75);
}

// Codecs that take the computation's cores and are all done before its end cost what they take.
TEST(StepTime, WhatIsNotHiddenDelays) {
  const std::vector<BucketCost> buckets = {{.ready_seconds = 1, .encode_seconds = 0.5, .decode_seconds = 0.5, .bytes = 100}};
  EXPECT_DOUBLE_EQ(predict_step({.compute_seconds = 10, .hidden = 0, .lanes = 1, .link = kLink}, buckets).seconds, 11);
  EXPECT_DOUBLE_EQ(predict_step({.compute_seconds = 10, .hidden = 0.75, .lanes = 1, .link = kLink}, buckets).seconds, 10.25);
  EXPECT_DOUBLE_EQ(predict_step({.compute_seconds = 10, .hidden = 1, .lanes = 1, .link = kLink}, buckets).seconds, 10);
}

// Ten buckets that lie ready. One lane does everything one behind the other; with several the slower station is never idle.
TEST(StepTime, LanesOverlapCodecAndLink) {
  const std::vector<BucketCost> buckets(10, {.encode_seconds = 1, .decode_seconds = 1, .rounds = 0, .bytes = 300});
  EXPECT_DOUBLE_EQ(predict_step({.lanes = 1, .link = kLink}, buckets).seconds, 50);
  EXPECT_DOUBLE_EQ(predict_step({.lanes = 3, .link = kLink}, buckets).seconds, 32);
}

// The same by a clock: every number is one of ticks, and nothing is skipped.
class Ticking {
 public:
  Ticking(const StepCost& step, const std::vector<BucketCost>& buckets) : step_(step), buckets_(buckets), at_(buckets.size()) {}

  double run() {
    const auto lanes = static_cast<std::size_t>(step_.lanes);
    std::size_t done = 0;
    long end = 0;
    for (long now = 0;; ++now) {
      // What ends now.
      std::vector<std::size_t> served;
      std::optional<std::size_t> sent_now;
      if (codec_busy_ && --codec_left_ == 0) {
        codec_busy_ = false;
        Way& way = at_[coded_];
        if (way.encoded && !way.sent) {
          way.sent = true;
          sent_now = coded_;
        } else if (way.encoded) {
          way.done = true;
          way.done_at = now;
          ++done;
          end = now;
        } else {
          way.encoded = true;
          way.sent = step_.sending_seconds == 0;
          to_link_.insert(coded_);
          if (!way.sent) served.push_back(coded_);
        }
      }
      if (link_busy_ && --link_left_ == 0) {
        link_busy_ = false;
        at_[sent_].arrives = now + buckets_[sent_].rounds * static_cast<long>(step_.link.round_seconds);
      }
      if (done == buckets_.size() && static_cast<double>(computed_) >= step_.compute_seconds)
        return static_cast<double>(std::max(end, computed_at_));
      // Who arrives where now.
      std::set<std::size_t> ready, received, released;
      for (std::size_t i = 0; i < buckets_.size(); ++i) {
        Way& way = at_[i];
        const bool lane_is_free = i < lanes || at_[i - lanes].done;
        if (!way.waits && static_cast<double>(computed_) >= buckets_[i].ready_seconds && lane_is_free) {
          way.waits = true;
          (i >= lanes && at_[i - lanes].done_at == now ? released : ready).insert(i);
        }
        if (way.arrives == now) {
          way.arrived = true;
          if (way.sent && sent_now != i) received.insert(i);
        }
      }
      if (sent_now && at_[*sent_now].arrived) served.push_back(*sent_now);
      codec_queue_.insert(codec_queue_.end(), ready.begin(), ready.end());
      codec_queue_.insert(codec_queue_.end(), received.begin(), received.end());
      codec_queue_.insert(codec_queue_.end(), served.begin(), served.end());
      codec_queue_.insert(codec_queue_.end(), released.begin(), released.end());
      for (const std::size_t i : to_link_) link_queue_.push_back(i);
      to_link_.clear();
      // What begins now.
      if (!codec_busy_ && !codec_queue_.empty()) {
        coded_ = codec_queue_.front();
        codec_queue_.pop_front();
        codec_busy_ = true;
        const BucketCost& cost = buckets_[coded_];
        codec_left_ = static_cast<long>(!at_[coded_].encoded ? cost.encode_seconds : !at_[coded_].sent ? cost.bytes * step_.sending_seconds : cost.decode_seconds);
      }
      if (!link_busy_ && !link_queue_.empty()) {
        sent_ = link_queue_.front();
        link_queue_.pop_front();
        link_busy_ = true;
        link_left_ = static_cast<long>(buckets_[sent_].bytes);
      }
      if (static_cast<double>(computed_) < step_.compute_seconds && !(codec_busy_ && step_.hidden == 0)) {
        ++computed_;
        computed_at_ = now + 1;
      }
    }
  }

 private:
  struct Way {
    bool waits = false, encoded = false, sent = false, arrived = false, done = false;
    long arrives = -1, done_at = -1;
  };
  const StepCost& step_;
  const std::vector<BucketCost>& buckets_;
  std::vector<Way> at_;
  std::deque<std::size_t> codec_queue_, link_queue_;
  std::set<std::size_t> to_link_;
  bool codec_busy_ = false, link_busy_ = false;
  std::size_t coded_ = 0, sent_ = 0;
  long codec_left_ = 0, link_left_ = 0, computed_ = 0, computed_at_ = 0;
};

TEST(StepTime, AgreesWithATickingClock) {
  std::mt19937 random(7);
  const auto any = [&](int least, int most) { return static_cast<double>(std::uniform_int_distribution(least, most)(random)); };
  for (int trial = 0; trial < 2000; ++trial) {
    StepCost step = {.compute_seconds = any(0, 60), .hidden = any(0, 1), .sending_seconds = any(0, 2), .lanes = static_cast<int>(any(1, 5)),
                     .link = {.bytes_per_second = 1, .round_seconds = any(1, 6)}};
    std::vector<BucketCost> buckets(static_cast<std::size_t>(any(0, 12)));
    const int longest = static_cast<int>(any(1, 15));
    for (BucketCost& bucket : buckets)
      bucket = {.ready_seconds = any(0, static_cast<int>(step.compute_seconds)), .encode_seconds = any(1, longest),
                .decode_seconds = any(1, longest), .rounds = static_cast<int>(any(1, 3)), .bytes = any(1, longest)};
    std::ranges::sort(buckets, {}, &BucketCost::ready_seconds);
    ASSERT_EQ(predict_step(step, buckets).seconds, Ticking(step, buckets).run()) << "trial " << trial;
  }
}

}  // namespace
}  // namespace thinwire
