// What collectives compute, between threads and by messages, against references that are slow and plain.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "communicators/parts.h"
#include "kernels/half.h"
#include "post_office.h"
#include "socket_pairs.h"

namespace thinwire {
namespace {

constexpr std::size_t kAroundTheRing = 8192;  // bytes; what is larger goes around a ring, if it travels as messages

enum class Carried { kBetweenThreads, kByMessages, kByCallersMessages, kBySockets };

class Collectives : public testing::TestWithParam<std::tuple<Carried, int, std::size_t>> {
 protected:
  bool by_messages() const { return std::get<0>(GetParam()) != Carried::kBetweenThreads; }
  int workers() const { return std::get<1>(GetParam()); }
  std::size_t elements() const { return std::get<2>(GetParam()); }

  Ends make_group() const {
    if (!by_messages()) return make_local_communicators(workers());
    if (std::get<0>(GetParam()) == Carried::kBySockets) return make_socket_group(workers());
    return make_posting_communicators(workers(), std::chrono::minutes(5), {}, {},
                                      std::get<0>(GetParam()) == Carried::kByMessages ? MovedBy::kThread : MovedBy::kCaller);
  }

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
    Ends group = make_group();
    const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
      communicator.perform({.kind = kind, .type = type, .root = root, .data = bytes_of(data[rank])});
    });
    for (int rank = 0; rank < workers(); ++rank) {
      EXPECT_EQ(errors[rank], "");
      EXPECT_TRUE(std::ranges::equal(bytes_of(data[rank]), std::as_bytes(std::span(expected)))) << "worker " << rank;
    }
  }

  // Folds the workers' values element by element, from worker 0 on; around a ring, from the worker whose part it is.
  template <class T, class Fold>
  std::vector<T> fold(const std::vector<std::vector<T>>& all, Fold operation) const {
    const std::size_t count = all.size(), bytes = elements() * sizeof(T);
    std::vector<T> total = all[0];
    for (std::size_t part = 0; part < count; ++part) {
      const bool ring = by_messages() && bytes > kAroundTheRing;
      const Part range = ring ? part_of(bytes, part, count) : Part{0, part == 0 ? bytes : 0};
      for (std::size_t i = range.begin / sizeof(T); i < range.end / sizeof(T); ++i) {
        total[i] = all[part][i];
        for (std::size_t r = 1; r < count; ++r) total[i] = operation(total[i], all[(part + r) % count][i]);
      }
    }
    return total;
  }

  using Widen = void (*)(std::span<const std::uint16_t>, float, std::span<float>);
  using Round = void (*)(std::span<const float>, float, std::span<std::uint16_t>);

  // Threads round once, after the last worker; messages carry sixteen bits from worker to worker.
  std::vector<std::uint16_t> sum_of_halves(const std::vector<std::vector<std::uint16_t>>& all, Widen widen, Round round) const {
    if (workers() == 1) return all[0];
    const auto widened = [&](std::uint16_t half) {
      float value = 0;
      widen({&half, 1}, 1, {&value, 1});
      return value;
    };
    const auto rounded = [&](float value) {
      std::uint16_t half = 0;
      round({&value, 1}, 1, {&half, 1});
      return half;
    };
    if (by_messages())
      return fold<std::uint16_t>(all, [&](std::uint16_t a, std::uint16_t b) { return rounded(widened(a) + widened(b)); });
    std::vector<std::vector<float>> floats(all.size());
    for (std::size_t r = 0; r < all.size(); ++r) std::ranges::transform(all[r], std::back_inserter(floats[r]), widened);
    std::vector<std::uint16_t> result;
    std::ranges::transform(fold<float>(floats, [](float a, float b) { return a + b; }), std::back_inserter(result), rounded);
    return result;
  }

  std::mt19937 random_{7};
};

TEST_P(Collectives, FloatsAreSummed) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-20, 20);
  const auto all = inputs<float>([&] { return normal(random_) * std::exp2(exponent(random_)); });
  expect_in_place(CollectiveKind::kSum, ElementType::kFloat32, all, fold<float>(all, [](float a, float b) { return a + b; }));
}

TEST_P(Collectives, IntegersAreSummedAndWrap) {
  const auto all = inputs<std::int32_t>([&] { return static_cast<std::int32_t>(random_()); });
  const auto wrapping = [](std::int32_t a, std::int32_t b) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  };
  expect_in_place(CollectiveKind::kSum, ElementType::kInt32, all, fold<std::int32_t>(all, wrapping));
}

TEST_P(Collectives, HalvesAreSummedInFloat) {
  std::normal_distribution<float> normal;
  std::vector<float> values(elements());
  for (const bool bf16 : {true, false}) {
    const auto round = bf16 ? kernels::to_bf16 : kernels::to_fp16;
    auto all = inputs<std::uint16_t>([] { return std::uint16_t{0}; });
    for (auto& halves : all) {
      std::ranges::generate(values, [&] { return normal(random_); });
      round(values, 1, halves);
    }
    const auto expected = sum_of_halves(all, bf16 ? kernels::from_bf16 : kernels::from_fp16, round);
    expect_in_place(CollectiveKind::kSum, bf16 ? ElementType::kBfloat16 : ElementType::kFloat16, all, expected);
  }
}

TEST_P(Collectives, MaximumOfFloats) {
  std::normal_distribution<float> normal;
  const auto all = inputs<float>([&] { return normal(random_); });
  expect_in_place(CollectiveKind::kMax, ElementType::kFloat32, all,
                  fold<float>(all, [](float a, float b) { return std::max(a, b); }));
}

TEST_P(Collectives, NanOfAnyWorkerWinsTheMaximum) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int sick = 0; sick < workers(); ++sick) {
    auto all = inputs<float>([&] { return kInfinity; });
    for (float& value : all[sick]) value = std::numeric_limits<float>::quiet_NaN();
    const auto expected = all[sick];
    expect_in_place(CollectiveKind::kMax, ElementType::kFloat32, all, expected);
  }
}

TEST_P(Collectives, MaximumOfIntegers) {
  const auto all = inputs<std::int32_t>([&] { return static_cast<std::int32_t>(random_()); });
  expect_in_place(CollectiveKind::kMax, ElementType::kInt32, all,
                  fold<std::int32_t>(all, [](std::int32_t a, std::int32_t b) { return std::max(a, b); }));
}

TEST_P(Collectives, UnionOfBits) {
  const auto all = inputs<std::uint32_t>([&] { return random_() & random_() & random_(); });
  expect_in_place(CollectiveKind::kUnite, ElementType::kUint32, all,
                  fold<std::uint32_t>(all, [](std::uint32_t a, std::uint32_t b) { return a | b; }));
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  const auto all = inputs<std::uint8_t>([&] { return static_cast<std::uint8_t>(random_()); });
  for (int root = 0; root < workers(); ++root)
    expect_in_place(CollectiveKind::kBroadcast, ElementType::kUint8, all, all[root], root);
}

TEST_P(Collectives, GatherInRankOrder) {
  auto all = inputs<std::uint8_t>([&] { return static_cast<std::uint8_t>(random_()); });
  std::vector<std::uint8_t> expected;
  for (const auto& bytes : all) expected.insert(expected.end(), bytes.begin(), bytes.end());

  std::vector<std::vector<std::uint8_t>> results(workers(), std::vector<std::uint8_t>(elements() * workers()));
  Ends group = make_group();
  const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
    communicator.perform({.kind = CollectiveKind::kGather, .data = bytes_of(all[rank]), .result = bytes_of(results[rank])});
  });
  EXPECT_EQ(errors, std::vector<std::string>(workers()));
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST_P(Collectives, ScatterInRankOrder) {
  const std::size_t shard = elements();
  std::vector<std::vector<std::uint8_t>> all(workers(), std::vector<std::uint8_t>(shard * workers()));
  for (auto& shards : all) std::ranges::generate(shards, [&] { return static_cast<std::uint8_t>(random_()); });

  std::vector<std::vector<std::uint8_t>> results(workers(), std::vector<std::uint8_t>(shard * workers()));
  Ends group = make_group();
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

std::string case_name(const testing::TestParamInfo<std::tuple<Carried, int, std::size_t>>& suite) {
  const auto [by_messages, workers, elements] = suite.param;
  return "workers" + std::to_string(workers) + "_elements" + std::to_string(elements);
}
INSTANTIATE_TEST_SUITE_P(Threads, Collectives,
                         testing::Combine(testing::Values(Carried::kBetweenThreads), testing::Values(1, 2, 3, 5), testing::Values(0, 1, 7, 4097)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Messages, Collectives,
                         testing::Combine(testing::Values(Carried::kByMessages), testing::Values(1, 2, 3, 5), testing::Values(0, 1, 7, 4097)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(CallersMessages, Collectives,
                         testing::Combine(testing::Values(Carried::kByCallersMessages), testing::Values(1, 2, 3, 5),
                                          testing::Values(0, 1, 7, 4097)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Sockets, Collectives,
                         testing::Combine(testing::Values(Carried::kBySockets), testing::Values(1, 2, 3, 5), testing::Values(0, 1, 7, 4097, 140'003)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Segments, Collectives,
                         testing::Combine(testing::Values(Carried::kByMessages), testing::Values(2, 3, 5), testing::Values(140'003, 300'001)), case_name);
INSTANTIATE_TEST_SUITE_P(CallersSegments, Collectives,
                         testing::Combine(testing::Values(Carried::kByCallersMessages), testing::Values(2, 3, 5), testing::Values(140'003, 300'001)),
                         case_name);

// 1 is lost beside 2^24 and counts twice when it meets another 1 first: only rank order gives these bits.
TEST(LocalCollectivesOrder, SumIsTakenInRankOrder) {
  const std::vector<float> in_rank_order = {1, 1, 16777216.0f};
  const std::vector<float> reversed = {16777216.0f, 1, 1};
  for (const auto& [values, expected] : {std::pair(in_rank_order, 16777218.0f), std::pair(reversed, 16777216.0f)}) {
    std::vector<float> data = values;
    Ends group = make_local_communicators(3);
    const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
      communicator.perform({.kind = CollectiveKind::kSum, .type = ElementType::kFloat32,
                            .data = std::as_writable_bytes(std::span(data).subspan(rank, 1))});
    });
    EXPECT_EQ(errors, std::vector<std::string>(3));
    EXPECT_EQ(data, std::vector<float>(3, expected));
  }
}

TEST(LocalGroup, EndsKnowTheirRank) {
  const Ends group = make_local_communicators(3);
  ASSERT_EQ(group.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group[rank]->rank(), rank);
    EXPECT_EQ(group[rank]->world_size(), 3);
  }
}

}  // namespace
}  // namespace thinwire
