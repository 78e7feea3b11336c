// Chunks are shorter where many workers share them, so that what is sent to each owner is not mostly padding.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reducer/sample_gradients.h"
#include "reducer/workers.h"
#include "sanitized.h"

namespace thinwire::testing {
namespace {

constexpr int kMany = kSanitized ? 18 : 40;
constexpr std::uint64_t kShort = 4096;

TEST(Chunks, AreShorterWhereManyWorkersShareThem) {
  constexpr std::uint64_t kLarge = 25'000'000;
  for (const auto& [workers, elements] : {std::pair{1, 32768U}, {16, 32768U}, {17, 16384U}, {33, 16384U}, {34, 8192U}, {64, 8192U}, {67, 4096U}, {5000, 4096U}})
    EXPECT_EQ(chunk_elements("casq:bits=3,reduce=scatter", workers, kLarge), elements) << workers;
  for (const auto& [workers, elements] : {std::pair{8, 32768U}, {9, 8192U}, {16, 4096U}})  // of the whole layout's
    EXPECT_EQ(chunk_elements("casq:bits=3,reduce=scatter", workers, 1'000'000), elements) << workers;
  EXPECT_EQ(chunk_elements("casq:bits=3,reduce=scatter", 16, 0), 4096U);
  EXPECT_EQ(chunk_elements("casq:rate=1,reduce=auto", 64, kLarge), 16384U);  // its encoder takes a while to begin a chunk
  EXPECT_EQ(chunk_elements("topk:density=0.01,reduce=scatter", 64, kLarge), 32768U);  // the largest of a longer chunk are larger
  EXPECT_EQ(chunk_elements("qsgd:reduce=scatter", 64, kLarge), 8192U);
  EXPECT_EQ(chunk_elements("qsgd:bucket=32768,reduce=scatter", 64, kLarge), 32768U);  // entries that share a norm
  EXPECT_EQ(chunk_elements("qsgd:coding=entropy,reduce=scatter", 64, kLarge), 32768U);  // a table for each
  EXPECT_EQ(chunk_elements("s2:mode=exact/casq:bits=2", 64, kLarge), 32768U);  // rows, however they are packed
  EXPECT_EQ(chunk_elements("casq:bits=3,reduce=gather", 64, kLarge), 32768U);  // all to all
  EXPECT_THROW(chunk_elements("cask", 64, kLarge), ArgumentError);
}

// Of equal parts a worker sends its own to all others, and all others' to their owners.
TEST(Chunks, AWorkerSendsHardlyMoreThanItsPart) {
  const Layout layout = Layout::flat(static_cast<std::uint64_t>(kMany) * kShort);
  Workers workers(layout, kMany, {.compressor = "casq:bits=2,reduce=scatter"});
  for (unsigned step = 0; step < 2; ++step) {
    Gradients gradients = make_gradients("laplace", kMany, layout.elements(), step);
    workers.step(gradients);
  }
  const Counters counters = workers.reducer(0).counters();
  const double others = static_cast<double>(kMany - 1) / kMany;
  const double sent = counters.traffic_bytes - 2 * others * static_cast<double>(counters.setup_bytes);
  const double formula = 2 * 2 * others * 2 / 8 * static_cast<double>(layout.elements());  // two steps, two halves, two bits
  EXPECT_GT(sent, formula);
  EXPECT_LT(sent, 1.05 * formula);
}

class ManyWorkers : public ::testing::TestWithParam<std::string> {
 protected:
  // What is given equals what comes out and what is kept, for all workers together, and they end with the same mean.
  static void expect_conserved(Workers& workers, unsigned step) {
    const std::size_t elements = workers.layout().elements();
    std::vector<double> given(elements);
    const auto add_residuals = [&](double sign) {
      for (int rank = 0; rank < workers.count(); ++rank) {
        const std::vector<float> residual = workers.residual(rank);
        for (std::size_t i = 0; i < elements; ++i) given[i] += sign * static_cast<double>(residual[i]);
      }
    };
    Gradients gradients = make_gradients("laplace", workers.count(), elements, step);
    add_residuals(1);
    for (const auto& gradient : gradients)
      for (std::size_t i = 0; i < elements; ++i) given[i] += static_cast<double>(gradient[i]);
    workers.step(gradients);
    for (const auto& mean : gradients) ASSERT_EQ(mean, gradients[0]);
    add_residuals(-1);
    for (std::size_t i = 0; i < elements; ++i) ASSERT_NEAR(given[i], workers.count() * static_cast<double>(gradients[0][i]), 1e-3) << i;
  }
};

TEST_P(ManyWorkers, LoseNothing) {
  const Layout layout({{"a", {2, 32768}}, {"b", {3}}, {"c", {static_cast<std::int64_t>(kShort) + 1}}});
  Workers workers(layout, kMany, {.compressor = GetParam()});
  for (unsigned step = 0; step < 3; ++step) expect_conserved(workers, step);
}

// What few workers have saved is of longer chunks. It goes on with many, and back again it is what it was.
TEST_P(ManyWorkers, GoOnFromWhatFewHaveSaved) {
  constexpr int kFew = 3;
  const Layout layout({{"a", {3, 32768}}, {"b", {100}}});
  const auto load = [](Workers& to, Reducer& from) {
    for (int rank = 0; rank < to.count(); ++rank) to.reducer(rank).load_state(from.state());
  };
  const ReducerOptions options{.compressor = GetParam()};
  Workers few(layout, kFew, options), many(layout, kMany, options), few_again(layout, kFew, options);
  for (unsigned step = 0; step < 3; ++step) {
    Gradients gradients = make_gradients("laplace", kFew, layout.elements(), step);
    few.step(gradients);
  }
  load(many, few.reducer(0));
  load(few_again, many.reducer(0));
  const auto saved = few.reducer(0).state(), saved_again = few_again.reducer(0).state();
  for (std::size_t i = 0; i < saved.size(); ++i) {
    EXPECT_EQ(saved_again[i].residual, saved[i].residual);
    EXPECT_EQ(saved_again[i].memory, saved[i].memory);
  }
  expect_conserved(many, 3);
  load(few_again, many.reducer(0));
  expect_conserved(few_again, 4);
}

INSTANTIATE_TEST_SUITE_P(Specs, ManyWorkers,
                         ::testing::Values("casq:bits=2,reduce=scatter", "casq:bits=4,reduce=gather", "casq:rate=1,reduce=scatter",
                                           "qsgd:bits=4,reduce=scatter,feedback=on", "casq:budget=3,reduce=scatter"));

}  // namespace
}  // namespace thinwire::testing
