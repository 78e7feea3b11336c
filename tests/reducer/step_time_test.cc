// The prediction of a step's time, against cases by hand and against a clock that ticks.
#include "thinwire/step_time.h"

#include <algorithm>
#include <cstddef>
#include <random>
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

// Three workers of a host send 200 bytes each, at 100 a second of all; each has a core of its own to send its 200.
TEST(StepTime, WorkersOfAHostShareItsLink) {
  const std::vector<BucketCost> bucket = {{.encode_seconds = 1, .decode_seconds = 0.25, .rounds = 1, .bytes = 200}};
  const StepTime time = predict_step({.sending_seconds = 0.02, .lanes = 1, .senders = 3, .link = kLink}, bucket);
  EXPECT_DOUBLE_EQ(time.wire_seconds, 6);
  EXPECT_DOUBLE_EQ(time.sending_seconds, 4);
  EXPECT_DOUBLE_EQ(time.seconds, 7.75);
}

// Codecs that take the computation's cores and are all done before its end cost what they take.
TEST(StepTime, WhatIsNotHiddenDelays) {
  const std::vector<BucketCost> buckets = {{.ready_seconds = 1, .encode_seconds = 0.5, .decode_seconds = 0.5, .bytes = 100}};
  EXPECT_DOUBLE_EQ(predict_step({.compute_seconds = 10, .hidden = 0, .lanes = 1, .link = kLink}, buckets).seconds, 11);
  EXPECT_DOUBLE_EQ(predict_step({.compute_seconds = 10, .hidden = 0.75, .lanes = 1, .link = kLink}, buckets).seconds, 10.25);
  EXPECT_DOUBLE_EQ(predict_step({.compute_seconds = 10, .hidden = 1, .lanes = 1, .link = kLink}, buckets).seconds, 10);
}

// Ten buckets that lie ready. One lane does everything one behind the other. Lanes that begin together stay together: all are encoded, then all are
// sent, and nothing overlaps but what is left over at the end.
TEST(StepTime, LanesShareBothStations) {
  const std::vector<BucketCost> ten(10, {.encode_seconds = 1, .decode_seconds = 1, .rounds = 0, .bytes = 300});
  EXPECT_DOUBLE_EQ(predict_step({.lanes = 1, .link = kLink}, ten).seconds, 50);
  EXPECT_DOUBLE_EQ(predict_step({.lanes = 5, .link = kLink}, ten).seconds, 50);
}

// The first is encoded when the second comes: while one is sent, the other is encoded.
TEST(StepTime, WhatIsReadyLaterOverlaps) {
  const std::vector<BucketCost> two = {{.ready_seconds = 0, .encode_seconds = 1, .decode_seconds = 1, .rounds = 0, .bytes = 100},
                                       {.ready_seconds = 1, .encode_seconds = 1, .decode_seconds = 1, .rounds = 0, .bytes = 100}};
  // Encoded at 1 and 2. From 2 to 3 the second is sent, and the first decoded; at 4 the second is.
  EXPECT_DOUBLE_EQ(predict_step({.compute_seconds = 1, .hidden = 1, .lanes = 2, .link = kLink}, two).seconds, 4);
}

// The same by a clock that ticks, and gives every bucket at a station its part of each tick.
class Ticking {
 public:
  Ticking(const StepCost& step, const std::vector<BucketCost>& buckets) : step_(step), ways_(buckets.size()) {
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      const BucketCost& cost = buckets[i];
      ways_[i] = {cost.ready_seconds, cost.encode_seconds, cost.bytes * step.sending_seconds, cost.decode_seconds,
                  cost.bytes / step.link.bytes_per_second, cost.rounds * step.link.round_seconds};
    }
  }

  static constexpr double kTick = 1.0 / 256;

  double run() {
    const auto lanes = static_cast<std::size_t>(step_.lanes);
    double now = 0, computed = 0;
    while (computed < step_.compute_seconds || std::ranges::any_of(ways_, [](const Way& way) { return way.decode > 0; })) {
      std::vector<double*> processor, link;
      for (std::size_t i = 0; i < ways_.size(); ++i) {
        Way& way = ways_[i];
        if (way.ready > computed || (i >= lanes && ways_[i - lanes].decode > 0)) continue;
        if (way.encode > 0) {
          processor.push_back(&way.encode);
          continue;
        }
        if (way.wire > 0) link.push_back(&way.wire);
        else way.latency -= kTick;
        if (way.send > 0) processor.push_back(&way.send);
        else if (way.wire <= 0 && way.latency <= 0 && way.decode > 0) processor.push_back(&way.decode);
      }
      for (const auto& station : {processor, link})
        for (double* left : station) *left -= kTick / static_cast<double>(station.size());
      computed += kTick * (processor.empty() ? 1 : step_.hidden);
      now += kTick;
    }
    return now;
  }

 private:
  struct Way {
    double ready = 0, encode = 0, send = 0, decode = 0, wire = 0, latency = 0;  // left of each
  };
  const StepCost& step_;
  std::vector<Way> ways_;
};

TEST(StepTime, AgreesWithATickingClock) {
  std::mt19937 random(7);
  const auto any = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  // No two things happen at once, whose order a clock that ticks would not tell; and a computation that stood still would wait for moments that are
  // shorter than a tick.
  const auto some = [&](double least, double most) { return std::uniform_real_distribution(least, most)(random); };
  for (int trial = 0; trial < 500; ++trial) {
    const StepCost step = {.compute_seconds = some(0, 30), .hidden = some(0.2, 1), .sending_seconds = some(0, 2), .lanes = any(1, 5),
                           .link = {.bytes_per_second = 1, .round_seconds = some(1, 6)}};
    std::vector<BucketCost> buckets(static_cast<std::size_t>(any(0, 12)));
    const double longest = some(1, 15);
    for (BucketCost& bucket : buckets)
      bucket = {.ready_seconds = some(0, step.compute_seconds), .encode_seconds = some(1, longest), .decode_seconds = some(1, longest),
                .rounds = any(1, 3), .bytes = some(1, longest)};
    std::ranges::sort(buckets, {}, &BucketCost::ready_seconds);
    const double ticked = Ticking(step, buckets).run();
    ASSERT_NEAR(predict_step(step, buckets).seconds, ticked, 0.01 * ticked + 0.3) << "trial " << trial;
  }
}

}  // namespace
}  // namespace thinwire
