// How many lanes an all-reduce has by what it costs.
#include "thinwire/pipelining.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace thinwire {
namespace {

constexpr int kMost = 8;

TEST(Pipelining, NothingToOverlapTakesOneLane) {
  const ReductionCost cost = {.codec_seconds = 0.1, .wire_seconds = 0, .bucket_codec_seconds = 1e-4, .bucket_wait_seconds = 0};
  EXPECT_EQ(choose_lanes(cost, 10, kMost), 1);
  EXPECT_DOUBLE_EQ(pipelined_seconds(cost, 10, 1), 0.101);
}

TEST(Pipelining, CodecThatIsNextToNothingTakesOneLane) {
  EXPECT_EQ(choose_lanes({.codec_seconds = 0.001, .wire_seconds = 1}, 10, kMost), 1);
}

// As much codec as wire: most of the one is hidden behind the other.
TEST(Pipelining, HalvesWhatIsHalfCodecAndHalfWire) {
  const ReductionCost cost = {.codec_seconds = 0.1, .wire_seconds = 0.1, .bucket_codec_seconds = 1e-5, .bucket_wait_seconds = 1e-5};
  const int lanes = choose_lanes(cost, 100, kMost);
  EXPECT_GE(lanes, 3);
  EXPECT_LT(pipelined_seconds(cost, 100, lanes), 0.13);
  EXPECT_GE(pipelined_seconds(cost, 100, lanes), 0.1);
}

TEST(Pipelining, DearBucketsCost) {
  const ReductionCost cost = {.codec_seconds = 0.1, .wire_seconds = 0.1, .bucket_codec_seconds = 0.01, .bucket_wait_seconds = 0};
  EXPECT_GT(pipelined_seconds(cost, 40, 4), pipelined_seconds(cost, 4, 4));
}

TEST(Pipelining, WaitingTakesMoreLanes) {
  ReductionCost cost = {.codec_seconds = 0.1, .wire_seconds = 1, .bucket_codec_seconds = 1e-5, .bucket_wait_seconds = 0};
  const int prompt = choose_lanes(cost, 40, kMost);
  cost.bucket_wait_seconds = 0.05;
  EXPECT_GT(choose_lanes(cost, 40, kMost), prompt);
}

// Two stations of equal service and n lanes: each is busy n / (n + 1) of the time.
TEST(Pipelining, AgreesWithTheClosedFormOfBalancedStations) {
  for (const int lanes : {1, 2, 3, 8})
    EXPECT_NEAR(pipelined_seconds({.codec_seconds = 1, .wire_seconds = 1}, 1000, lanes), (lanes + 1.0) / lanes, 0.01);
}

// Half of the lanes that are taken would come within 4 % of the best, and fewer than those would not.
TEST(Pipelining, TakesTwiceTheLanesThatServe) {
  const ReductionCost cost = {.codec_seconds = 0.1, .wire_seconds = 0.14, .bucket_codec_seconds = 2e-3, .bucket_wait_seconds = 1e-3};
  double least = pipelined_seconds(cost, 16, 1);
  for (int lanes = 2; lanes <= kMost; ++lanes) least = std::min(least, pipelined_seconds(cost, 16, lanes));
  ASSERT_EQ(choose_lanes(cost, 16, kMost), 6);
  EXPECT_LE(pipelined_seconds(cost, 16, 3), 1.04 * least);
  EXPECT_GT(pipelined_seconds(cost, 16, 2), 1.04 * least);
}

TEST(Pipelining, NeverMoreThanBucketsNorThanAllowed) {
  const ReductionCost cost = {.codec_seconds = 1, .wire_seconds = 1, .bucket_codec_seconds = 0, .bucket_wait_seconds = 1};
  EXPECT_EQ(choose_lanes(cost, 3, kMost), 3);
  EXPECT_EQ(choose_lanes(cost, 100, 2), 2);
  EXPECT_EQ(choose_lanes(cost, 1, kMost), 1);
  EXPECT_EQ(choose_lanes({}, 7, kMost), 1);
}

}  // namespace
}  // namespace thinwire
