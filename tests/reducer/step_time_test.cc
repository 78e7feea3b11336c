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

// Ready at 2. The computation has half of the processor until it ends: the bucket is encoded at 4, and the computation then at 3. It sends from 4 to 5, and
// its round is over at 5.5; its owner is done at 5.75, as the computation is at 5.125; it sends again until 6.75, receives at 7.25, and has decoded at 7.5.
TEST(StepTime, OneBucketGoesThroughItsStations) {
  const std::vector<BucketCost> buckets = {
      {.ready_seconds = 2, .encode_seconds = 1, .between_seconds = 0.25, .decode_seconds = 0.25, .rounds = 2, .bytes = 200}};
  const StepTime time = predict_step({.compute_seconds = 4, .hidden = 0, .lanes = 1, .link = kLink}, buckets);
  EXPECT_DOUBLE_EQ(time.seconds, 7.5);
  EXPECT_DOUBLE_EQ(time.waiting_seconds, 2.5);
  EXPECT_DOUBLE_EQ(time.codec_seconds, 1.5);
  EXPECT_DOUBLE_EQ(time.wire_seconds, 2);
  EXPECT_DOUBLE_EQ(predict_step({.compute_seconds = 4, .hidden = 1, .lanes = 1, .link = kLink}, buckets).waiting_seconds, 2.5);
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

// Six messages around a ring, each of which waits half a second for the one before: three seconds behind the .6 that their bytes take. Where each is 40 bytes
// longer than a segment, these .4 seconds pass meanwhile, and so for 60 does all of the wait but the first.
TEST(StepTime, HopsOfARingWaitForOneAnother) {
  const auto seconds = [](double bytes_a_hop) {
    const std::vector<BucketCost> bucket = {{.encode_seconds = 1, .decode_seconds = 0.25, .rounds = 1, .hops = 6, .bytes = 6 * bytes_a_hop}};
    return predict_step({.lanes = 1, .link = kLink}, bucket).seconds - 1.25 - 6 * bytes_a_hop / kLink.bytes_per_second;
  };
  constexpr double kSegment = 60 << 10;
  EXPECT_DOUBLE_EQ(seconds(10), 6 * 0.5);
  EXPECT_NEAR(seconds(kSegment + 40), 0.5 + 5 * 0.1, 1e-9);
  EXPECT_NEAR(seconds(kSegment + 60), 0.5, 1e-9);
}

// Three rings of a host share its link: while one waits for its next message of ten bytes the others' twenty pass, in .2 of the half second.
TEST(StepTime, RingsOfAHostFillEachOthersWaits) {
  const auto seconds = [](double bytes_a_hop) {
    const std::vector<BucketCost> bucket = {{.rounds = 1, .hops = 6, .bytes = 6 * bytes_a_hop}};
    return predict_step({.lanes = 1, .senders = 3, .link = kLink}, bucket).seconds - 3 * 6 * bytes_a_hop / kLink.bytes_per_second;
  };
  EXPECT_NEAR(seconds(10), 0.5 + 5 * 0.3, 1e-9);
  EXPECT_NEAR(seconds(30), 0.5, 1e-9);
}

// Codecs that take the computation's cores and are all done before its end cost what they take. Of a core that is idle for three quarters they have 7/8, as does the computation.
TEST(StepTime, WhatIsNotHiddenDelays) {
  const std::vector<BucketCost> buckets = {{.ready_seconds = 1, .encode_seconds = 0.5, .decode_seconds = 0.5, .bytes = 100}};
  EXPECT_DOUBLE_EQ(predict_step({.compute_seconds = 10, .hidden = 0, .lanes = 1, .link = kLink}, buckets).seconds, 11);
  EXPECT_DOUBLE_EQ(predict_step({.compute_seconds = 10, .hidden = 0.75, .lanes = 1, .link = kLink}, buckets).seconds, 10 + 1.0 / 7);
  EXPECT_DOUBLE_EQ(predict_step({.compute_seconds = 10, .hidden = 1, .lanes = 1, .link = kLink}, buckets).seconds, 10);
}

// Two buckets encode, and the computation has a third of the processor: all three are done at once.
TEST(StepTime, TheComputationIsAThreadAmongOthers) {
  const std::vector<BucketCost> two(2, {.encode_seconds = 1, .rounds = 0});
  const StepTime time = predict_step({.compute_seconds = 1, .hidden = 0, .lanes = 2, .link = kLink}, two);
  EXPECT_DOUBLE_EQ(time.seconds, 3);
  EXPECT_NEAR(time.waiting_seconds, 0, 1e-12);
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
      ways_[i].ready = cost.ready_seconds;
      for (int round = 0; round < cost.rounds; ++round) {
        const double bytes = cost.bytes / cost.rounds;
        ways_[i].legs.push_back({round == 0 ? cost.encode_seconds : cost.between_seconds / (cost.rounds - 1), bytes * step.sending_seconds,
                                 bytes / step.link.bytes_per_second, step.link.round_seconds});
      }
      ways_[i].legs.push_back({.compute = cost.decode_seconds});
    }
  }

  static constexpr double kTick = 1.0 / 256;

  double run() {
    const auto lanes = static_cast<std::size_t>(step_.lanes);
    double now = 0, computed = 0;
    while (computed < step_.compute_seconds || std::ranges::any_of(ways_, [](const Way& way) { return !way.legs.empty(); })) {
      std::vector<double*> processor, link;
      for (std::size_t i = 0; i < ways_.size(); ++i) {
        Way& way = ways_[i];
        if (way.ready > computed || (i >= lanes && !ways_[i - lanes].legs.empty()) || way.legs.empty()) continue;
        Leg& leg = way.legs.front();
        if (leg.compute > 0) {
          processor.push_back(&leg.compute);
          continue;
        }
        if (leg.wire > 0) link.push_back(&leg.wire);
        else leg.latency -= kTick;
        if (leg.send > 0) processor.push_back(&leg.send);
        if (leg.wire <= 0 && leg.latency <= 0 && leg.send <= 0) way.legs.erase(way.legs.begin());
      }
      const double wanted = computed < step_.compute_seconds ? (1 - step_.hidden) / static_cast<double>(processor.size() + 1) : 0;
      for (double* left : processor) *left -= kTick * (1 - wanted) / static_cast<double>(processor.size());
      for (double* left : link) *left -= kTick / static_cast<double>(link.size());
      computed += kTick * (processor.empty() ? 1 : step_.hidden + wanted);
      now += kTick;
    }
    return now;
  }

 private:
  struct Leg {
    double compute = 0, send = 0, wire = 0, latency = 0;  // left of each
  };
  struct Way {
    double ready = 0;
    std::vector<Leg> legs;
  };
  const StepCost& step_;
  std::vector<Way> ways_;
};

TEST(StepTime, AgreesWithATickingClock) {
  std::mt19937 random(7);
  const auto any = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  // No two things happen at once, whose order a clock that ticks would not tell.
  const auto some = [&](double least, double most) { return std::uniform_real_distribution(least, most)(random); };
  for (int trial = 0; trial < 500; ++trial) {
    const StepCost step = {.compute_seconds = some(0, 30), .hidden = some(0, 1), .sending_seconds = some(0, 2), .lanes = any(1, 5),
                           .link = {.bytes_per_second = 1, .round_seconds = some(1, 6)}};
    std::vector<BucketCost> buckets(static_cast<std::size_t>(any(0, 12)));
    const double longest = some(1, 15);
    for (BucketCost& bucket : buckets) {
      const int rounds = any(1, 3);
      bucket = {.ready_seconds = some(0, step.compute_seconds), .encode_seconds = some(1, longest), .between_seconds = rounds > 1 ? some(1, longest) : 0,
                .decode_seconds = some(1, longest), .rounds = rounds, .bytes = some(1, longest)};
    }
    std::ranges::sort(buckets, {}, &BucketCost::ready_seconds);
    const double ticked = Ticking(step, buckets).run();
    ASSERT_NEAR(predict_step(step, buckets).seconds, ticked, 0.01 * ticked + 0.3) << "trial " << trial;
  }
}

}  // namespace
}  // namespace thinwire
