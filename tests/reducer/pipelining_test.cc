// How an all-reduce is cut into buckets and lanes by what it costs.
#include "thinwire/pipelining.h"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

namespace thinwire {
namespace {

constexpr std::array kBuckets = {1, 4, 8, 16, 32, 64, 128};
constexpr std::array kLanes = {1, 2, 3, 4, 6, 8, 12, 16};

Pipelining choose(const ReductionCost& cost) { return choose_pipelining(cost, kBuckets, kLanes); }

TEST(Pipelining, NothingToOverlapIsNotCut) {
  const Pipelining chosen = choose({.codec_seconds = 0.1, .wire_seconds = 0, .bucket_codec_seconds = 1e-4, .bucket_wait_seconds = 0});
  EXPECT_EQ(chosen.buckets, 1);
  EXPECT_EQ(chosen.lanes, 1);
  EXPECT_DOUBLE_EQ(chosen.seconds, 0.1001);
}

// As much codec as wire: most of the one is hidden behind the other.
TEST(Pipelining, HalvesWhatIsHalfCodecAndHalfWire) {
  const Pipelining chosen = choose({.codec_seconds = 0.1, .wire_seconds = 0.1, .bucket_codec_seconds = 1e-5, .bucket_wait_seconds = 1e-5});
  EXPECT_GE(chosen.buckets, 16);
  EXPECT_GE(chosen.lanes, 3);
  EXPECT_LT(chosen.seconds, 0.13);
  EXPECT_GE(chosen.seconds, 0.1);
}

TEST(Pipelining, DearBucketsAreFewer) {
  ReductionCost cost = {.codec_seconds = 0.1, .wire_seconds = 0.1, .bucket_codec_seconds = 1e-5, .bucket_wait_seconds = 0};
  const int cheap = choose(cost).buckets;
  cost.bucket_codec_seconds = 1e-3;
  const int dear = choose(cost).buckets;
  EXPECT_LT(dear, cheap);
  EXPECT_GT(dear, 1);
  cost.bucket_codec_seconds = 1;
  EXPECT_EQ(choose(cost).buckets, 1);
}

TEST(Pipelining, WaitingTakesMoreLanes) {
  ReductionCost cost = {.codec_seconds = 0.1, .wire_seconds = 0.1, .bucket_codec_seconds = 1e-5, .bucket_wait_seconds = 0};
  const int prompt = choose(cost).lanes;
  cost.bucket_wait_seconds = 0.01;
  EXPECT_GT(choose(cost).lanes, prompt);
}

// Two stations of equal service and n lanes: each is busy n / (n + 1) of the time.
TEST(Pipelining, AgreesWithTheClosedFormOfBalancedStations) {
  for (const int lanes : {1, 2, 3, 8}) {
    const std::array one_number = {lanes}, buckets = {1000};
    const double seconds = choose_pipelining({.codec_seconds = 1, .wire_seconds = 1}, buckets, one_number).seconds;
    EXPECT_NEAR(seconds, (lanes + 1.0) / lanes, 0.01);
  }
}

// More lanes and buckets than help are not taken: they cost memory and threads.
TEST(Pipelining, TakesTheFewestThatServe) {
  const Pipelining chosen = choose({.codec_seconds = 0.001, .wire_seconds = 1, .bucket_codec_seconds = 0, .bucket_wait_seconds = 0});
  EXPECT_EQ(chosen.buckets, 1);
  EXPECT_EQ(chosen.lanes, 1);
}

// Half of the lanes that are taken would come within 4 % of the best, and fewer than those would not.
TEST(Pipelining, TakesTwiceTheLanesThatServe) {
  const ReductionCost cost = {.codec_seconds = 0.1, .wire_seconds = 0.14, .bucket_codec_seconds = 2e-3, .bucket_wait_seconds = 1e-3};
  const auto seconds = [&](int lanes) { return choose_pipelining(cost, kBuckets, std::array{lanes}).seconds; };
  double least = seconds(1);
  for (const int lanes : kLanes) least = std::min(least, seconds(lanes));
  const int lanes = choose(cost).lanes;
  ASSERT_EQ(lanes, 6);
  EXPECT_LE(seconds(3), 1.04 * least);
  EXPECT_GT(seconds(2), 1.04 * least);
}

TEST(Pipelining, OneOfOne) {
  const std::array one = {7}, two = {2};
  const Pipelining chosen = choose_pipelining({}, one, two);
  EXPECT_EQ(chosen.buckets, 7);
  EXPECT_EQ(chosen.lanes, 2);
}

}  // namespace
}  // namespace thinwire
