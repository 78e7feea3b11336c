// Tables: who goes where, what is expected of it, and that nobody does better.
#include "compressors/casq/casq_buckets.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire {
namespace {

constexpr BucketAssignment kBoth[] = {BucketAssignment::kRank, BucketAssignment::kHash};
constexpr Allocation kAllocations[] = {Allocation::kOptimal, Allocation::kEntropy, Allocation::kDensity,
                                       Allocation::kEntropyCentre, Allocation::kEntropyCentreDensity};

TEST(BucketWalk, ByRankIsTheFormula) {
  std::mt19937 random(1);
  for (const std::vector<std::uint16_t>& buckets : {std::vector<std::uint16_t>{1, 7, 300, 2000}, {40, 1, 1, 999}}) {
    std::vector<std::uint8_t> codes(1000);
    for (auto& code : codes) code = static_cast<std::uint8_t>(random() % 4);
    BucketWalk walk(codes, buckets, BucketAssignment::kRank);
    std::vector<std::uint32_t> seen(4);
    for (const std::uint8_t code : codes) {
      const auto n = static_cast<std::uint32_t>(std::ranges::count(codes, code));
      const std::uint32_t m = std::min<std::uint32_t>(buckets[code], n);
      const std::uint32_t first = std::accumulate(buckets.begin(), buckets.begin() + code, 0u);
      ASSERT_EQ(walk.next(code), first + seen[code]++ * m / n);
    }
  }
}

TEST(BucketWalk, ByHashStaysWithinTheClusterAndFillsItEvenly) {
  constexpr std::uint16_t kBuckets = 64;
  constexpr int kEntries = 32768;
  const std::vector<std::uint8_t> codes(kEntries, 1);
  const std::vector<std::uint16_t> buckets = {5, kBuckets};
  BucketWalk walk(codes, buckets, BucketAssignment::kHash);
  std::vector<int> filled(kBuckets);
  for (const std::uint8_t code : codes) {
    const std::uint32_t bucket = walk.next(code);
    ASSERT_GE(bucket, 5u);
    ASSERT_LT(bucket, 5u + kBuckets);
    ++filled[bucket - 5];
  }
  double chi_squared = 0;
  const double expected = static_cast<double>(kEntries) / kBuckets;
  for (const int count : filled) chi_squared += (count - expected) * (count - expected) / expected;
  EXPECT_LT(chi_squared, 110);  // 63 degrees of freedom: exceeded once in 4,000
  EXPECT_GT(chi_squared, 25);
}

TEST(BucketHash, IsABijectionWhoseBitsAreBalanced) {
  std::set<std::uint32_t> seen;
  std::vector<int> ones(32);
  for (std::uint32_t entry = 0; entry < 32768; ++entry) {
    seen.insert(hash_of(entry));
    for (int bit = 0; bit < 32; ++bit) ones[static_cast<std::size_t>(bit)] += static_cast<int>(hash_of(entry) >> bit & 1);
  }
  EXPECT_EQ(seen.size(), 32768u);
  for (const int count : ones) EXPECT_NEAR(count, 16384, 5 * 90.5);
}

std::vector<std::uint16_t> allocated(const std::vector<ClusterStatistics>& clusters, std::size_t entries, Allocation allocation,
                                     BucketAssignment assign) {
  std::vector<std::uint16_t> counts(clusters.size());
  allocate_buckets(clusters, entries, allocation, assign, counts);
  return counts;
}

std::vector<ClusterStatistics> random_clusters(std::size_t count, std::mt19937& random) {
  std::vector<ClusterStatistics> clusters(count);
  for (auto& cluster : clusters) {
    cluster.entries = random() % 7 == 0 ? 0 : static_cast<double>(random() % 5000);
    cluster.variance = std::exp(static_cast<double>(random() % 1000) / 100 - 5);
    cluster.centre = static_cast<double>(random() % 200) - 100;
    cluster.entropy = static_cast<double>(random() % 80) / 10;
  }
  return clusters;
}

TEST(AllocateBuckets, GivesAllAndOneToEach) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 300; ++trial) {
    const std::size_t count = std::size_t{2} << random() % 8;
    const auto clusters = random_clusters(count, random);
    const std::size_t entries = count + random() % 3000;
    for (const Allocation allocation : kAllocations)
      for (const BucketAssignment assign : kBoth) {
        const auto buckets = allocated(clusters, entries, allocation, assign);
        ASSERT_EQ(buckets.size(), count);
        ASSERT_EQ(std::accumulate(buckets.begin(), buckets.end(), std::size_t{0}), entries);
        const auto least = allocation == Allocation::kOptimal ? 1 : std::min<std::size_t>(10, entries / count);
        ASSERT_GE(*std::ranges::min_element(buckets), least);
      }
  }
}

TEST(AllocateBuckets, NothingIsToldApartByNothing) {
  const std::vector<ClusterStatistics> clusters(4);
  for (const Allocation allocation : kAllocations)
    for (const BucketAssignment assign : kBoth) {
      const auto buckets = allocated(clusters, 100, allocation, assign);
      EXPECT_EQ(std::accumulate(buckets.begin(), buckets.end(), 0), 100);
    }
}

double total_error(const std::vector<ClusterStatistics>& clusters, std::span<const std::uint16_t> buckets, BucketAssignment assign) {
  double error = 0;
  for (std::size_t c = 0; c < clusters.size(); ++c) error += expected_error(clusters[c], buckets[c], assign);
  return error;
}

// No move of a bucket from one cluster to another helps, and no published weight is better.
TEST(AllocateBuckets, OptimalIsOptimal) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 50; ++trial) {
    const auto clusters = random_clusters(4, random);
    const std::size_t entries = 200 + random() % 3000;
    for (const BucketAssignment assign : kBoth) {
      auto buckets = allocated(clusters, entries, Allocation::kOptimal, assign);
      const double best = total_error(clusters, buckets, assign);
      for (const Allocation other : kAllocations)
        EXPECT_LE(best, total_error(clusters, allocated(clusters, entries, other, assign), assign) * 1.001 + 1e-9);
      constexpr std::uint16_t kMoved = 5;
      for (std::size_t from = 0; from < 4; ++from)
        for (std::size_t to = 0; to < 4; ++to) {
          if (buckets[from] <= kMoved || from == to) continue;
          buckets[from] -= kMoved, buckets[to] += kMoved;
          EXPECT_LE(best, total_error(clusters, buckets, assign) * 1.001 + 1e-9) << from << " to " << to;
          buckets[from] += kMoved, buckets[to] -= kMoved;
        }
    }
  }
}

// What worker 0 chooses is foreign to the others.
TEST(CasqBudget, ImpossibleBitsAreRefused) {
  for (const int bits : {0, 9, 255}) {
    Reducer reducer(Layout::flat(5000), {.compressor = "casq:budget=2", .rank = 1, .world_size = 2});
    std::vector<float> gradient(5000, 1.0f);
    Reduction reduction = reducer.reduce(testing::parameters_of(reducer.layout(), gradient));
    const auto drive = [&] {
      while (const Collective* collective = reduction.next())
        if (collective->kind == CollectiveKind::kBroadcast) collective->data[0] = static_cast<std::byte>(bits);
    };
    EXPECT_THROW(drive(), PayloadError) << bits;
  }
}

// A checkpoint of other bits belongs to another budget, and is taken; without a budget it is refused.
TEST(CasqBudget, StateKeepsTheBits) {
  const Layout layout({{"a", {5000}}, {"b", {3000}}});
  testing::Workers workers(layout, 2, {.compressor = "casq:budget=3"});
  testing::Gradients gradients = testing::make_gradients("laplace", 2, layout.elements());
  for (std::size_t i = 5000; i < 8000; ++i) gradients[0][i] *= 100, gradients[1][i] *= 100;
  workers.step(gradients);
  const auto state = workers.reducer(0).state();
  EXPECT_NE(state[0].memory[5], state[1].memory[5]);
  Reducer other(layout, {.compressor = "casq:budget=3", .world_size = 2});
  other.load_state(state);
  EXPECT_EQ(other.state()[1].memory, state[1].memory);
  Reducer fixed(layout, {.compressor = "casq:bits=8", .world_size = 2});
  EXPECT_THROW(fixed.load_state(state), StateError);
}

}  // namespace
}  // namespace thinwire
