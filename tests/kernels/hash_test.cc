// Buckets are as full, and signs as balanced, as chance allows; also for keys that are not random at all.
#include "kernels/hash.h"

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace thinwire::kernels {
namespace {

constexpr int kKeys = 200'000;

std::vector<std::uint64_t> keys_of(const std::string& kind) {
  std::vector<std::uint64_t> keys;
  for (std::uint64_t i = 0; i < kKeys; ++i)
    keys.push_back(kind == "ascending" ? i : kind == "strided" ? i * 4096 : kind == "upper half" ? i << 32 : i * i);
  return keys;
}

class Hash : public testing::TestWithParam<std::string> {};

// Of n balls in m bins, chi squared is m - 1 on average with a variance of 2 (m - 1).
TEST_P(Hash, FillsBucketsEvenly) {
  for (const std::uint32_t buckets : {2u, 7u, 1000u, 4096u}) {
    std::vector<double> count(buckets);
    for (const std::uint64_t key : keys_of(GetParam())) ++count[bucket_of(hash(99, key), buckets)];
    double chi = 0;
    const double expected = static_cast<double>(kKeys) / buckets;
    for (const double c : count) chi += (c - expected) * (c - expected) / expected;
    EXPECT_NEAR(chi, buckets - 1, 5 * std::sqrt(2.0 * (buckets - 1)) + 5) << buckets << " buckets";
  }
}

TEST_P(Hash, BalancesSigns) {
  for (int bit = 0; bit < 16; ++bit) {
    int sum = 0;
    for (const std::uint64_t key : keys_of(GetParam())) sum += (hash(7, key) >> bit) & 1 ? 1 : -1;
    EXPECT_LT(std::abs(sum), 5 * std::sqrt(kKeys)) << "bit " << bit;
  }
}

// As many different buckets as independent draws would hit: m (1 - (1 - 1/m)^n).
TEST_P(Hash, LeavesNoMoreBucketsEmptyThanChance) {
  constexpr std::uint32_t kBuckets = 100'000;
  std::vector<bool> hit(kBuckets);
  int occupied = 0;
  for (const std::uint64_t key : keys_of(GetParam())) {
    const std::uint32_t bucket = bucket_of(hash(3, key), kBuckets);
    occupied += hit[bucket] ? 0 : 1;
    hit[bucket] = true;
  }
  EXPECT_NEAR(occupied, kBuckets * (1 - std::exp(-2.0)), 1000);
}

// Two keys that share a bucket under one seed share it under another only by chance, and no sign follows from a bucket.
TEST_P(Hash, SeedsAreIndependent) {
  const std::vector<std::uint64_t> keys = keys_of(GetParam());
  constexpr std::uint32_t kBuckets = 64;
  std::vector<double> count(kBuckets * kBuckets * 2);
  for (const std::uint64_t key : keys) {
    const std::uint64_t first = hash(1, key), second = hash(2, key);
    ++count[(bucket_of(first, kBuckets) * kBuckets + bucket_of(second, kBuckets)) * 2 + (first & 1)];
  }
  double chi = 0;
  const double expected = static_cast<double>(kKeys) / static_cast<double>(count.size());
  for (const double c : count) chi += (c - expected) * (c - expected) / expected;
  const auto degrees = static_cast<double>(count.size() - 1);
  EXPECT_NEAR(chi, degrees, 5 * std::sqrt(2 * degrees));
}

INSTANTIATE_TEST_SUITE_P(Keys, Hash, testing::Values("ascending", "strided", "upper half", "squares"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           for (char& c : name) c = c == ' ' ? '_' : c;
                           return name;
                         });

TEST(Permutation, TakesEveryNumberOnceAndDependsOnItsSeed) {
  for (const std::uint64_t n : {1u, 2u, 3u, 4u, 5u, 63u, 64u, 65u, 1000u, 4097u}) {
    int same = 0;
    for (const std::uint64_t seed : {0u, 1u, 77u}) {
      const Permutation permutation(seed, n), other(seed + 1000, n);
      std::vector<bool> taken(n);
      for (std::uint64_t x = 0; x < n; ++x) {
        const std::uint64_t y = permutation(x);
        ASSERT_LT(y, n);
        ASSERT_FALSE(taken[y]) << y << " of " << n;
        taken[y] = true;
        same += y == other(x) ? 1 : 0;
      }
    }
    if (n > 60) {
      EXPECT_LT(same, 30) << n;
    }
  }
}

// Who shares a cell with whom is drawn anew under every seed: every distance between two numbers is as likely.
TEST(Permutation, PairsMeetAsOftenAsChanceHasIt) {
  constexpr std::uint64_t kNumbers = 96, kCells = 48, kSeeds = 20'000;
  std::vector<int> met(kNumbers);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Permutation permutation(mix(seed), kNumbers);
    const std::uint64_t first = permutation(0) % kCells;
    for (std::uint64_t x = 1; x < kNumbers; ++x) met[x] += permutation(x) % kCells == first ? 1 : 0;
  }
  const double expected = static_cast<double>(kSeeds) / (kNumbers - 1);
  for (std::uint64_t x = 1; x < kNumbers; ++x) EXPECT_NEAR(met[x], expected, 6 * std::sqrt(expected)) << x;
}

}  // namespace
}  // namespace thinwire::kernels
