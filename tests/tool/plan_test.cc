// What `thinwire plan` reckons with, against cases by hand.
#include "tool/plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "thinwire/errors.h"
#include "tool/expect_refused.h"

namespace thinwire::tool {
namespace {

TEST(Plan, ReadsRates) {
  EXPECT_DOUBLE_EQ(parse_rate("100mbit"), 12.5e6);
  EXPECT_DOUBLE_EQ(parse_rate("2.5gbit"), 312.5e6);
  EXPECT_DOUBLE_EQ(parse_rate("64kbit"), 8e3);
  for (const char* text : {"", "1", "gbit", "1gb", "1Gbit", "0mbit", "-1gbit", "+1gbit", "1e3mbit", "1 gbit", "infgbit", "nangbit"})
    expect_refused([&] { parse_rate(text); }, {text, "is not a rate", "100mbit"});
}

TEST(Plan, ReadsTimes) {
  EXPECT_DOUBLE_EQ(parse_time("200us"), 200e-6);
  EXPECT_DOUBLE_EQ(parse_time("0.4ns"), 0.4e-9);
  EXPECT_DOUBLE_EQ(parse_time("1.5ms"), 1.5e-3);
  EXPECT_DOUBLE_EQ(parse_time("2s"), 2);
  EXPECT_EQ(parse_time("0us"), 0);
  for (const char* text : {"", "200", "us", "-1us", "1min", "1e3us", "infs"})
    expect_refused([&] { parse_time(text); }, {text, "is not a time", "200us"});
}

TEST(Plan, ReadsHosts) {
  const Hosts hosts = parse_hosts("4x8");
  EXPECT_EQ(hosts.count, 4);
  EXPECT_EQ(hosts.workers, 8);
  EXPECT_EQ(parse_hosts("512x2").count, 512);
  EXPECT_EQ(parse_hosts("128x8").workers, 8);
  for (const char* wrong : {"", "4", "x", "4x", "x8", "1x8", "4x1", "2x9", "129x8", "-2x2", "4x8x2", "4X8", "4 x 8", "99999999999x2"})
    expect_refused([&] { parse_hosts(wrong); }, {wrong, "is not hosts x workers of each, such as 4x8", "2 to 8 workers of each, 1024 altogether"});
}

TEST(Plan, WritesRates) {
  EXPECT_EQ(short_rate(12.5e6), "100 Mb/s");
  EXPECT_EQ(short_rate(312.5e6), "2.5 Gb/s");
  EXPECT_EQ(short_rate(125), "1 kb/s");
  EXPECT_EQ(short_rate(124.99e6), "1 Gb/s");
  EXPECT_EQ(short_rate(1.25e14), "1e+03 Tb/s");
}

std::vector<std::string> names(const Buckets& buckets) {
  std::vector<std::string> names;
  std::uint32_t next = 0;
  for (const std::uint32_t end : buckets.ends) {
    names.emplace_back();
    for (; next < end; ++next) names.back() += buckets.layout.parameters()[next].name;
  }
  return names;
}

TEST(Plan, BucketsAreFilledFromTheLastParameterOn) {
  const Layout layout({{"a", {50}}, {"b", {3, 20}}, {"c", {30}}, {"d", {100}}, {"e", {8}}, {"f", {2}}});
  const Buckets buckets = ddp_buckets(layout, {.first = 10, .others = 100});
  EXPECT_EQ(names(buckets), (std::vector<std::string>{"fe", "d", "cba"}));
  EXPECT_EQ(bucket_elements(buckets), (std::vector<std::uint64_t>{10, 100, 140}));
  EXPECT_EQ(bucket_elements(ddp_buckets(layout, {.first = 1000, .others = 1000})), (std::vector<std::uint64_t>{250}));
}

TEST(Plan, SizesOfBucketsAreDDPs) {
  EXPECT_EQ(bucket_sizes({}).first * 4, 1u << 20);
  EXPECT_EQ(bucket_sizes({}).others * 4, 25u << 20);
  EXPECT_EQ(bucket_sizes(0.5).first * 4, 1u << 19);
  EXPECT_EQ(bucket_sizes(0.5).others * 4, 1u << 19);
}

TEST(Plan, EvenLayoutsMakeBucketsOfAParameterEach) {
  for (const std::uint64_t elements : {1u, 9u, 10u, 11u, 110u, 111u, 1234u}) {
    const Layout layout = even_layout(elements, {.first = 10, .others = 100});
    EXPECT_EQ(layout.elements(), elements);
    const Buckets buckets = ddp_buckets(layout, {.first = 10, .others = 100});
    EXPECT_EQ(buckets.ends.size(), layout.parameters().size());
    const std::vector<std::uint64_t> sizes = bucket_elements(buckets);
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) EXPECT_EQ(sizes[i], i == 0 ? 10u : 100u);
  }
  const Layout usual = even_layout(25'600'000, bucket_sizes({}));
  EXPECT_EQ(usual.parameters().back().shape, (std::vector<std::int64_t>{512, 512}));
  EXPECT_EQ(usual.parameters()[1].shape, (std::vector<std::int64_t>{2048, 3200}));
}

TEST(Plan, BucketsBecomeReadyInTheBackwardPass) {
  const std::vector<std::uint64_t> elements = {10, 30, 60};
  const std::vector<double> ready = ready_seconds(elements, 3, 1.0 / 3);
  ASSERT_EQ(ready.size(), 3u);
  EXPECT_DOUBLE_EQ(ready[0], 1.2);
  EXPECT_DOUBLE_EQ(ready[1], 1.8);
  EXPECT_EQ(ready[2], 3);
}

TEST(Plan, SamplesWhatFits) {
  const auto million = [](const char* name, std::int64_t millions) { return Parameter{name, {millions, 1'000'000}}; };
  const BucketSizes each{.first = 1, .others = 1};
  const Sample some = sample_of(ddp_buckets(Layout({million("d", 1), million("c", 4), million("b", 7), million("a", 3)}), each));
  EXPECT_EQ(names(some.buckets), (std::vector<std::string>{"a", "c", "d"}));
  EXPECT_EQ(some.numbers, (std::vector<std::size_t>{0, 2, 3}));

  const Sample little = sample_of(ddp_buckets(Layout({million("b", 100), million("a", 1)}), each));
  EXPECT_EQ(little.buckets.ends.size(), 2u);
  EXPECT_EQ(little.numbers, (std::vector<std::size_t>{0}));
  EXPECT_EQ(little.buckets.layout.parameters().back().shape, (std::vector<std::int64_t>{2048, 2048}));

  const Sample all = sample_of(ddp_buckets(Layout({million("a", 1)}), each));
  EXPECT_EQ(all.buckets.ends.size(), 1u);
}

TEST(Plan, WhatWasNotMeasuredCostsAsMuchByTheElement) {
  const Sample sample{{Layout({{"a", {10}}, {"c", {30}}}), {1, 2}}, {0, 2}};
  const std::vector<BucketCost> measured = {{.encode_seconds = 1, .decode_seconds = 2, .rounds = 1, .bytes = 40},
                                            {.encode_seconds = 3, .decode_seconds = 2, .rounds = 2, .bytes = 40}};
  const std::vector<BucketCost> costs = spread(sample, measured, std::vector<std::uint64_t>{10, 20, 30});
  ASSERT_EQ(costs.size(), 3u);
  EXPECT_EQ(costs[0].encode_seconds, 1);
  EXPECT_DOUBLE_EQ(costs[1].encode_seconds, 2);
  EXPECT_DOUBLE_EQ(costs[1].decode_seconds, 2);
  EXPECT_DOUBLE_EQ(costs[1].bytes, 40);
  EXPECT_EQ(costs[1].rounds, 2);
  EXPECT_EQ(costs[2].encode_seconds, 3);
}

// A gather sends the same to all others, a ring twice a part for each, of whole chunks if it goes straight to owners; decoding grows with what is gathered.
TEST(Plan, MoreWorkersFollowFromTwoNumbers) {
  constexpr std::uint64_t kChunks = 31;
  const auto tried = [](int workers) {
    const double w = workers;
    const BucketCost gather{.encode_seconds = 5, .decode_seconds = 1 + 2 * w, .rounds = 1, .bytes = 100 * (w - 1)};
    const BucketCost ring{.encode_seconds = 5, .decode_seconds = workers == 4 ? 1.0 : 1.05, .rounds = 1, .bytes = 2 * 800 * (w - 1) / w};
    return std::pair(TriedWorkers{workers, gather, kChunks}, TriedWorkers{workers, ring, kChunks});
  };
  const BucketCost gather = extrapolate(tried(4).first, tried(8).first, 64, kChunks), ring = extrapolate(tried(4).second, tried(8).second, 64, kChunks);
  EXPECT_DOUBLE_EQ(gather.encode_seconds, 5);
  EXPECT_DOUBLE_EQ(gather.decode_seconds, 129);
  EXPECT_NEAR(gather.bytes, 6300, 1e-9);
  EXPECT_DOUBLE_EQ(ring.decode_seconds, 1.05);  // noise
  EXPECT_NEAR(ring.bytes, 2 * 800 * 63.0 / 64, 1e-9);

  const auto scattered = [](int workers, int chunks_of_owner) {
    return TriedWorkers{workers, BucketCost{.decode_seconds = 1 + workers / 4.0, .rounds = 2, .hops = 2, .bytes = 2.0 * 800 / kChunks * chunks_of_owner * (workers - 1)}, kChunks};
  };
  const BucketCost owners = extrapolate(scattered(4, 8), scattered(8, 4), 64, kChunks);
  EXPECT_EQ(owners.decode_seconds, 3);  // others work beside
  EXPECT_NEAR(owners.bytes, 2 * 800.0 / kChunks * 63, 1e-9);
  EXPECT_NEAR(extrapolate(scattered(4, 8), scattered(8, 4), 64, 4 * kChunks).bytes, 2 * 800.0 / kChunks * 63 / 2, 1e-9);  // more cut them shorter
  const auto two = [&](int workers) {
    TriedWorkers tried_among = scattered(workers, 1);
    tried_among.chunks = 2;
    return tried_among;
  };
  EXPECT_NEAR(extrapolate(two(4), two(8), 64, 2).bytes, 2 * 800.0 / kChunks * 63, 1e-9);  // where there are fewer than workers that are tried
}

TEST(Plan, FewerWorkersChooseAsAllWould) {
  const Link link{.bytes_per_second = 1e8, .round_seconds = 1e-3};
  const auto scatters = [](const Link& on, double workers, double bytes) {
    return on.seconds(2, 2 * (workers - 1) / workers * bytes) < on.seconds(1, (workers - 1) * bytes);
  };
  for (const double bytes : {1e2, 1e3, 2e3, 1e4, 5e4, 1e5, 1e6})
    for (const int tried : {4, 8}) EXPECT_EQ(scatters(choosing_alike(link, tried, 64), tried, bytes), scatters(link, 64, bytes)) << bytes;
}

// 1000 / b = 100 / b + 0.9 at b = 1000.
TEST(Plan, PaysBelowTheRateAtWhichBothTakeAsLong) {
  const std::vector<BucketCost> plain = {{.rounds = 1, .bytes = 1000}};
  const auto rate = [&](const BucketCost& cost, double compute = 0) {
    const StepCost step{.compute_seconds = compute, .hidden = 1, .lanes = 1, .link = {1, 0.25}};
    return pays_below({step, {cost}}, {step, plain});
  };
  EXPECT_NEAR(rate({.encode_seconds = 0.6, .decode_seconds = 0.3, .rounds = 1, .bytes = 100}), 1000, 1e-6);
  EXPECT_NEAR(rate({.encode_seconds = 0.4, .decode_seconds = 0.25, .rounds = 2, .bytes = 100}), 1000, 1e-6);  // a round more takes 0.25
  EXPECT_TRUE(std::isinf(rate({.rounds = 1, .bytes = 100})));
  EXPECT_EQ(rate({.rounds = 1, .bytes = 1000}), 0);
  EXPECT_EQ(rate({.rounds = 1, .bytes = 1001}), 0);
  // Plain is hidden by the computation from 500 bytes a second on: 1000 / 500 + 0.25.
  EXPECT_NEAR(rate({.encode_seconds = 0.1, .rounds = 1, .bytes = 100}, 2.25), 500, 1e-6);
}

TEST(Plan, NamesWhatLimits) {
  const auto limit = [](const BucketCost& cost, double compute) {
    return limit_of({{.compute_seconds = compute, .hidden = 1, .lanes = 1, .link = {100, 0.1}}, {cost}});
  };
  EXPECT_EQ(limit({.encode_seconds = 2, .decode_seconds = 1, .rounds = 1, .bytes = 100}, 0), Limit::kCodec);
  EXPECT_EQ(limit({.encode_seconds = 0.2, .decode_seconds = 0.1, .rounds = 1, .bytes = 100}, 0), Limit::kLink);
  EXPECT_EQ(limit({.encode_seconds = 0.2, .decode_seconds = 0.1, .rounds = 8, .bytes = 10}, 0), Limit::kRounds);
  EXPECT_EQ(limit({.encode_seconds = 0.2, .decode_seconds = 0.1, .rounds = 8, .bytes = 10}, 2), Limit::kComputation);
  const StepCost busy{.sending_seconds = 0.02, .lanes = 1, .link = {100, 0.1}};
  EXPECT_EQ(limit_of({busy, {{.encode_seconds = 0.2, .decode_seconds = 0.1, .rounds = 1, .bytes = 100}}}), Limit::kSending);
  EXPECT_STREQ(name_of(Limit::kRounds), "rounds");
  EXPECT_STREQ(name_of(Limit::kSending), "sending");
}

}  // namespace
}  // namespace thinwire::tool
