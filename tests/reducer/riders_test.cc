// Uncompressed parameters that ride in the message of a compressed one: summed in rank order, with a round less, and nothing else changes.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "reducer/sample_gradients.h"
#include "reducer/workers.h"
#include "sanitized.h"

namespace thinwire::testing {
namespace {

constexpr std::size_t kMatrix = 100 * 90, kSmall = 77 + 1 + 1000;

Layout layout() { return Layout({{"small", {77}}, {"matrix", {100, 90}}, {"one", {1}}, {"other", {1000}}}); }

Link link_of(double bytes_per_second, double round_seconds) {
  return {.bytes_per_second = bytes_per_second, .round_seconds = round_seconds};
}

ReducerOptions options(const std::string& spec, Link link = {}) {
  ReducerOptions all{.compressor = spec, .rules = {{"matrix", spec}, {"*", "none"}}};
  all.link = link;
  return all;
}

std::uint64_t rounds(Workers& workers) { return workers.reducer(0).counters().rounds; }

// The matrix, which is behind 77 others.
std::span<const float> matrix_of(const std::vector<float>& gradient) { return std::span(gradient).subspan(77, kMatrix); }

class Riding : public ::testing::TestWithParam<std::string> {};

TEST_P(Riding, SumsInRankOrderInTheRoundsOfTheOther) {
  for (const int count : kSanitized ? std::vector{1, 3} : std::vector{1, 2, 3, 5}) {
    const Link slow_rounds = link_of(1e9, 1e-3);
    Workers together(layout(), count, options(GetParam(), slow_rounds)), apart(layout(), count, options(GetParam(), slow_rounds));
    for (unsigned step = 0; step < 3; ++step) {
      const Gradients inputs = make_gradients("laplace", count, layout().elements(), step);
      Gradients means = inputs, expected = inputs;
      together.step(means);
      apart.step(expected, {0, 1, 2});
      for (const auto& mean : means) {
        EXPECT_TRUE(std::ranges::equal(matrix_of(mean), matrix_of(expected[0])));
        for (std::size_t i = 0; i < layout().elements(); ++i) {
          if (i >= 77 && i < 77 + kMatrix) continue;
          float sum = inputs[0][i];
          for (std::size_t rank = 1; rank < inputs.size(); ++rank) sum += inputs[rank][i];
          ASSERT_EQ(mean[i], sum * (1.0f / static_cast<float>(count))) << i;
        }
      }
    }
    EXPECT_EQ(rounds(together) + 2 * 3, rounds(apart)) << count;  // the uncompressed ones are in two reductions there
    for (int rank = 0; rank < count; ++rank) EXPECT_EQ(together.residual(rank), apart.residual(rank));
  }
}

TEST_P(Riding, ANanInOneEndsTheStepForAll) {
  for (const std::size_t place : {std::size_t{3}, 77 + kMatrix, layout().elements() - 1}) {
    Workers workers(layout(), 3, options(GetParam()));
    Gradients gradients = make_gradients("laplace", 3, layout().elements());
    workers.step(gradients);
    const std::vector<float> before = workers.residual(1);
    gradients[2][place] = std::numeric_limits<float>::quiet_NaN();
    workers.step(gradients);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(workers.reducer(rank).counters().failed_steps, 1U);
      for (const float mean : gradients[static_cast<std::size_t>(rank)]) ASSERT_TRUE(std::isnan(mean));
    }
    EXPECT_EQ(workers.residual(1), before);
  }
}

TEST_P(Riding, ANanInTheOtherEndsTheStepToo) {
  Workers workers(layout(), 2, options(GetParam()));
  Gradients gradients = make_gradients("laplace", 2, layout().elements());
  gradients[1][100] = std::numeric_limits<float>::infinity();
  workers.step(gradients);
  for (const auto& gradient : gradients)
    for (const float mean : gradient) ASSERT_TRUE(std::isnan(mean));
}

TEST_P(Riding, BytesAreCounted) {
  Workers with(layout(), 4, options(GetParam())), without(Layout({{"matrix", {100, 90}}}), 4, options(GetParam()));
  Gradients all = make_gradients("laplace", 4, layout().elements()), matrices = make_gradients("laplace", 4, kMatrix);
  for (std::size_t rank = 0; rank < 4; ++rank) std::ranges::copy(matrix_of(all[rank]), matrices[rank].begin());
  std::swap(matrices[0], matrices[1]);  // the matrix is worker 1's in one layout, and worker 0's in the other: owners are to have the same values
  with.step(all);
  without.step(matrices);
  const auto more = with.reducer(0).counters().traffic_bytes - without.reducer(0).counters().traffic_bytes;
  const bool scatters = GetParam().find("scatter") != std::string::npos;
  const double parts = std::ceil(kSmall / 4.0) * 4;
  EXPECT_DOUBLE_EQ(more, 4 * (scatters ? 2 * 3 * parts / 4 : 3.0 * kSmall));
}

INSTANTIATE_TEST_SUITE_P(Payloads, Riding,
                         ::testing::Values("casq:bits=2,reduce=gather", "casq:bits=2,reduce=scatter", "casq:bits=4,feedback=off,reduce=gather",
                                           "casq:rate=1,reduce=gather", "casq:rate=1,reduce=scatter", "qsgd:bits=4,reduce=scatter",
                                           "s2:mode=exact/casq:bits=4,reduce=gather"));

TEST(Riders, OfHalvesKeepTheirType) {
  const Layout layout({{"small", {33}}, {"matrix", {64, 64}}});
  for (const ElementType type : {ElementType::kBfloat16, ElementType::kFloat16}) {
    const std::uint16_t one = type == ElementType::kFloat16 ? 0x3c00 : 0x3f80, two = type == ElementType::kFloat16 ? 0x4000 : 0x4000;
    Workers workers(layout, 2, {.compressor = "casq:bits=4", .rules = {{"small", "none"}}});
    std::vector<std::vector<std::uint16_t>> small(2, std::vector<std::uint16_t>(33, two));
    std::vector<std::vector<float>> matrix(2, std::vector<float>(64 * 64, 0.5f));
    std::ranges::fill(small[1], std::uint16_t{0});
    in_parallel(2, [&](int rank, Communicator& communicator) {
      const auto index = static_cast<std::size_t>(rank);
      const std::vector<ParameterGradient> parameters{{0, type, std::as_writable_bytes(std::span(small[index]))},
                                                      {1, ElementType::kFloat32, std::as_writable_bytes(std::span(matrix[index]))}};
      Reduction reduction = workers.reducer(rank).reduce(parameters, 0, 1);
      run(reduction, communicator);
    });
    for (const auto& means : small)
      for (const std::uint16_t mean : means) ASSERT_EQ(mean, one);
    EXPECT_EQ(workers.reducer(0).counters().rounds, 2U);  // training, and the message
  }
}

// Rounds of one step, beyond those of the matrix alone.
std::uint64_t further_rounds(const std::string& spec, int count, std::int64_t small, Link link) {
  const auto taken = [&](const Layout& layout) {
    Workers workers(layout, count, options(spec, link));
    Gradients gradients = make_gradients("normal", count, layout.elements());
    workers.step(gradients);
    return rounds(workers);
  };
  return taken(Layout({{"small", {small}}, {"matrix", {64, 64}}})) - taken(Layout({{"matrix", {64, 64}}}));
}

TEST(Riders, TravelAloneWhereThatIsSooner) {
  constexpr double kGigabit = 1.25e8;
  const std::string gather = "casq:bits=2,reduce=gather", scatter = "casq:bits=2,reduce=scatter";
  // Four workers send 3 n where a sum sends 1.5 n: 6 n bytes more.
  EXPECT_EQ(further_rounds(gather, 4, 1000, link_of(kGigabit, 50e-6)), 0U);
  EXPECT_EQ(further_rounds(gather, 4, 1100, link_of(kGigabit, 50e-6)), 1U);
  EXPECT_EQ(further_rounds(gather, 4, 1000, {}), 0U);
  EXPECT_EQ(further_rounds(gather, 4, 2000, {}), 1U);
  // Two send as much either way, and so do owners.
  EXPECT_EQ(further_rounds(gather, 2, 60000, link_of(kGigabit, 0)), 0U);
  EXPECT_EQ(further_rounds(scatter, 4, 60000, link_of(kGigabit, 0)), 0U);
  // So many are better summed by the engine.
  EXPECT_EQ(further_rounds(gather, 2, 70000, {}), 1U);
  EXPECT_EQ(further_rounds(scatter, 4, 70000, {}), 1U);
  // What is summed takes nobody along.
  EXPECT_EQ(further_rounds("bf16", 2, 100, {}), 1U);
}

TEST(Riders, AreUnderTheChecksum) {
  Reducer reducer(Layout({{"small", {50}}, {"matrix", {64, 64}}}), {.compressor = "casq:bits=2,reduce=gather", .rules = {{"small", "none"}}, .world_size = 2});
  std::vector<float> gradient(50 + 64 * 64, 1.0f);
  Reduction reduction = reducer.reduce(parameters_of(reducer.layout(), gradient));
  const Collective* collective = reduction.next();
  while (collective->kind != CollectiveKind::kGather) collective = reduction.next();
  const std::size_t size = collective->data.size();
  for (std::size_t rank = 0; rank < 2; ++rank) std::ranges::copy(collective->data, collective->result.subspan(rank * size).begin());
  collective->result.back() ^= std::byte{1};  // the last float's sign
  EXPECT_THROW(reduction.next(), PayloadError);
}

}  // namespace
}  // namespace thinwire::testing
