// What collectives between threads compute, against references that are slow and plain.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "kernels/half.h"
#include "worker_threads.h"

namespace thinwire {
namespace {

class LocalCollectives : public testing::TestWithParam<std::tuple<int, std::size_t>> {
 protected:
  int workers() const { return std::get<0>(GetParam()); }
  std::size_t elements() const { return std::get<1>(GetParam()); }

  // One vector for each worker, filled by draw().
  template <class T, class Draw>
  std::vector<std::vector<T>> inputs(Draw draw) {
    std::vector<std::vector<T>> all(workers(), std::vector<T>(elements()));
    for (auto& values : all) std::generate(values.begin(), values.end(), draw);
    return all;
  }

  // Performs the collective in place and expects `expected` on every worker.
  template <class T>
  void expect_in_place(CollectiveKind kind, ElementType type, std::vector<std::vector<T>> data,
                       const std::vector<T>& expected, int root = 0) {
    Group group = make_local_communicators(workers());
    const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
      communicator.perform({.kind = kind, .type = type, .root = root, .data = bytes_of(data[rank])});
    });
    for (int rank = 0; rank < workers(); ++rank) {
      EXPECT_EQ(errors[rank], "");
      EXPECT_TRUE(std::ranges::equal(bytes_of(data[rank]), std::as_bytes(std::span(expected)))) << "worker " << rank;
    }
  }

  // Folds the workers' values in rank order, element by element.
  template <class T, class Fold>
  static std::vector<T> fold(const std::vector<std::vector<T>>& all, Fold operation) {
    std::vector<T> total = all[0];
    for (std::size_t r = 1; r < all.size(); ++r)
      for (std::size_t i = 0; i < total.size(); ++i) total[i] = operation(total[i], all[r][i]);
    return total;
  }

  std::vector<float> sum_of_halves(const std::vector<std::vector<std::uint16_t>>& all,
                                   void (*widen)(std::span<const std::uint16_t>, float, std::span<float>)) const {
    std::vector<std::vector<float>> widened(all.size(), std::vector<float>(elements()));
    for (std::size_t r = 0; r < all.size(); ++r) widen(all[r], 1, widened[r]);
    return fold<float>(widened, [](float a, float b) { return a + b; });
  }

  std::mt19937 random_{7};
};

TEST_P(LocalCollectives, FloatsAreSummedInRankOrder) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-20, 20);
  const auto all = inputs<float>([&] { return normal(random_) * std::exp2(exponent(random_)); });
  expect_in_place(CollectiveKind::kSum, ElementType::kFloat32, all, fold<float>(all, [](float a, float b) { return a + b; }));
}

TEST_P(LocalCollectives, IntegersAreSummedAndWrap) {
  const auto all = inputs<std::int32_t>([&] { return static_cast<std::int32_t>(random_()); });
  const auto wrapping = [](std::int32_t a, std::int32_t b) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  };
  expect_in_place(CollectiveKind::kSum, ElementType::kInt32, all, fold<std::int32_t>(all, wrapping));
}

TEST_P(LocalCollectives, HalvesAreSummedInFloatAndRoundedOnce) {
  std::normal_distribution<float> normal;
  std::vector<float> values(elements());
  for (const bool bf16 : {true, false}) {
    const auto round = bf16 ? kernels::to_bf16 : kernels::to_fp16;
    auto all = inputs<std::uint16_t>([] { return std::uint16_t{0}; });
    for (auto& halves : all) {
      std::ranges::generate(values, [&] { return normal(random_); });
      round(values, 1, halves);
    }
    std::vector<std::uint16_t> expected = all[0];
    if (workers() > 1) round(sum_of_halves(all, bf16 ? kernels::from_bf16 : kernels::from_fp16), 1, expected);
    expect_in_place(CollectiveKind::kSum, bf16 ? ElementType::kBfloat16 : ElementType::kFloat16, all, expected);
  }
}

TEST_P(LocalCollectives, MaximumOfFloats) {
  std::normal_distribution<float> normal;
  const auto all = inputs<float>([&] { return normal(random_); });
  expect_in_place(CollectiveKind::kMax, ElementType::kFloat32, all,
                  fold<float>(all, [](float a, float b) { return std::max(a, b); }));
}

TEST_P(LocalCollectives, NanOfAnyWorkerWinsTheMaximum) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int sick = 0; sick < workers(); ++sick) {
    auto all = inputs<float>([&] { return kInfinity; });
    for (float& value : all[sick]) value = std::numeric_limits<float>::quiet_NaN();
    const auto expected = all[sick];
    expect_in_place(CollectiveKind::kMax, ElementType::kFloat32, all, expected);
  }
}

TEST_P(LocalCollectives, MaximumOfIntegers) {
  const auto all = inputs<std::int32_t>([&] { return static_cast<std::int32_t>(random_()); });
  expect_in_place(CollectiveKind::kMax, ElementType::kInt32, all,
                  fold<std::int32_t>(all, [](std::int32_t a, std::int32_t b) { return std::max(a, b); }));
}

TEST_P(LocalCollectives, UnionOfBits) {
  const auto all = inputs<std::uint32_t>([&] { return random_() & random_() & random_(); });
  expect_in_place(CollectiveKind::kUnite, ElementType::kUint32, all,
                  fold<std::uint32_t>(all, [](std::uint32_t a, std::uint32_t b) { return a | b; }));
}

TEST_P(LocalCollectives, BroadcastFromEveryRoot) {
  const auto all = inputs<std::uint8_t>([&] { return static_cast<std::uint8_t>(random_()); });
  for (int root = 0; root < workers(); ++root)
    expect_in_place(CollectiveKind::kBroadcast, ElementType::kUint8, all, all[root], root);
}

TEST_P(LocalCollectives, GatherInRankOrder) {
  auto all = inputs<std::uint8_t>([&] { return static_cast<std::uint8_t>(random_()); });
  std::vector<std::uint8_t> expected;
  for (const auto& bytes : all) expected.insert(expected.end(), bytes.begin(), bytes.end());

  std::vector<std::vector<std::uint8_t>> results(workers(), std::vector<std::uint8_t>(elements() * workers()));
  Group group = make_local_communicators(workers());
  const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
    communicator.perform({.kind = CollectiveKind::kGather, .data = bytes_of(all[rank]), .result = bytes_of(results[rank])});
  });
  EXPECT_EQ(errors, std::vector<std::string>(workers()));
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST_P(LocalCollectives, ScatterInRankOrder) {
  const std::size_t shard = elements();
  std::vector<std::vector<std::uint8_t>> all(workers(), std::vector<std::uint8_t>(shard * workers()));
  for (auto& shards : all) std::ranges::generate(shards, [&] { return static_cast<std::uint8_t>(random_()); });

  std::vector<std::vector<std::uint8_t>> results(workers(), std::vector<std::uint8_t>(shard * workers()));
  Group group = make_local_communicators(workers());
  const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
    communicator.perform({.kind = CollectiveKind::kScatter, .data = bytes_of(all[rank]), .result = bytes_of(results[rank])});
  });
  EXPECT_EQ(errors, std::vector<std::string>(workers()));
  for (int to = 0; to < workers(); ++to)
    for (int from = 0; from < workers(); ++from)
      EXPECT_TRUE(std::equal(results[to].begin() + from * shard, results[to].begin() + (from + 1) * shard,
                             all[from].begin() + to * shard))
          << from << " to " << to;
}

INSTANTIATE_TEST_SUITE_P(Sizes, LocalCollectives,
                         testing::Combine(testing::Values(1, 2, 3, 5), testing::Values(0, 1, 7, 4097)),
                         [](const auto& suite) {
                           return "workers" + std::to_string(std::get<0>(suite.param)) + "_elements" +
                                  std::to_string(std::get<1>(suite.param));
                         });

// 1 is lost beside 2^24 and counts twice when it meets another 1 first: only rank order gives these bits.
TEST(LocalCollectivesOrder, SumIsTakenInRankOrder) {
  const std::vector<float> in_rank_order = {1, 1, 16777216.0f};
  const std::vector<float> reversed = {16777216.0f, 1, 1};
  for (const auto& [values, expected] : {std::pair(in_rank_order, 16777218.0f), std::pair(reversed, 16777216.0f)}) {
    std::vector<float> data = values;
    Group group = make_local_communicators(3);
    const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
      communicator.perform({.kind = CollectiveKind::kSum, .type = ElementType::kFloat32,
                            .data = std::as_writable_bytes(std::span(data).subspan(rank, 1))});
    });
    EXPECT_EQ(errors, std::vector<std::string>(3));
    EXPECT_EQ(data, std::vector<float>(3, expected));
  }
}

TEST(LocalGroup, EndsKnowTheirRank) {
  const Group group = make_local_communicators(3);
  ASSERT_EQ(group.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group[rank]->rank(), rank);
    EXPECT_EQ(group[rank]->world_size(), 3);
  }
}

}  // namespace
}  // namespace thinwire
