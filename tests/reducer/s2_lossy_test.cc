// S2 where something is lost: contraction, what feedback needs, stages, and many steps.
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "compressors/s2/s2.h"
#include "reducer/sparse_gradients.h"
#include "reducer/workers.h"
#include "sanitized.h"

namespace thinwire::testing {
namespace {

double energy(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

double measured_error(const std::string& spec, double density) {
  Workers worker(embedding(), 1, {.compressor = spec, .measure_every = 1});
  for (unsigned step = 0; step < 5; ++step) {
    Gradients gradients = normal_rows(1, density, step);
    worker.step(gradients);
  }
  const Counters counters = worker.reducer(0).counters();
  return counters.error_energy / counters.measured_energy;
}

// Of k entries in a cell each has the others' errors, so that unshrunk the cell loses k-1 times what it holds, and shrunk to 1/k it
// loses (k-1)/k. There are as many cells as the share `r` of the entries, with `few` or one more in each.
TEST(S2Sketch, IsAContractionBecauseItIsShrunk) {
  for (const char* const ratio : {"0.05", "0.25", "0.3", "0.5", "0.9"}) {
    const double r = std::stod(ratio), few = std::floor(1 / r), fuller = 1 - r * few, emptier = r - fuller;  // cells an entry
    const double unshrunk = fuller * (few + 1) * few + emptier * few * (few - 1), shrunk = 1 - r;
    const std::string spec = std::string("s2:mode=sketch,feedback=off,ratio=") + ratio;
    EXPECT_NEAR(measured_error(spec, 0.3), shrunk, 0.03) << ratio;
    EXPECT_NEAR(measured_error(spec + ",shrink=off", 0.3), unshrunk, 0.1 * unshrunk) << ratio;
    for (const char* const tables : {"3", "5"}) EXPECT_LT(measured_error(spec + ",tables=" + tables, 0.3), 0.999);
  }
}

// What is left over after many steps of the same kind: bounded with the shrinking, growing without bound without it.
double residual_after(const std::string& spec, unsigned steps) {
  Workers workers(embedding(), 2, {.compressor = spec});
  for (unsigned step = 0; step < steps; ++step) {
    Gradients gradients = normal_rows(2, 0.2, 3);
    workers.step(gradients);
    if (workers.reducer(0).counters().non_finite > 0) return INFINITY;
  }
  Gradients residuals = {workers.residual(0), workers.residual(1)};
  for (std::size_t i = 0; i < residuals[0].size(); ++i) residuals[0][i] += residuals[1][i];
  return energy(residuals[0]);
}

TEST(S2Sketch, FeedbackConvergesShrunkAndDivergesUnshrunk) {
  const double shrunk = residual_after("s2:mode=sketch,ratio=0.25", 60);
  EXPECT_LT(residual_after("s2:mode=sketch,ratio=0.25", 240), 1.5 * shrunk);
  const double unshrunk = residual_after("s2:mode=sketch,ratio=0.25,shrink=off", 60);
  EXPECT_GT(unshrunk, 1e6 * shrunk);
}

// The squared distance from where a quadratic is least, after training on it, as a part of what it was at first. Each
// worker's gradient is that of the rows it happens to use.
double trained(const std::string& spec, float learning_rate, unsigned steps) {
  Workers workers(embedding(), 2, {.compressor = spec});
  std::vector<float> distance(kRows * kRow);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (float& each : distance) each = normal(random);
  const double at_first = energy(distance);
  for (unsigned step = 0; step < steps; ++step) {
    Gradients gradients = normal_rows(2, 0.2, step);
    for (auto& gradient : gradients)
      for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = gradient[i] != 0 ? distance[i] : 0.0f;
    workers.step(gradients);
    for (std::size_t i = 0; i < distance.size(); ++i) distance[i] -= learning_rate * gradients[0][i];
    if (!(energy(distance) < 1e6 * at_first)) break;
  }
  return energy(distance) / at_first;
}

TEST(S2Sketch, TrainingConvergesShrunkAndDivergesUnshrunk) {
  constexpr float kRate = 0.1f;
  constexpr unsigned kSteps = 400;
  EXPECT_LT(trained("none", kRate, kSteps), 1e-6);
  for (const std::string spec : {"s2:mode=sketch,ratio=0.25", "s2:mode=sketch,ratio=0.25,tables=3"}) {
    EXPECT_LT(trained(spec, kRate, kSteps), 0.01) << spec;
    EXPECT_FALSE(trained(spec + ",shrink=off", kRate, kSteps) < 1e3) << spec;
  }
}

TEST(S2Sketch, LosesNothingOverAllSteps) {
  for (const std::string spec : {"s2:mode=sketch,ratio=0.3", "s2:mode=sketch,ratio=0.3,tables=3", "s2:mode=peel,feedback=on",
                                 "s2:mode=exact/casq:bits=2", "s2:mode=exact/casq:bits=2,reduce=scatter"}) {
    Workers workers(embedding(), 3, {.compressor = spec});
    std::vector<double> balance(kRows * kRow);
    for (unsigned step = 0; step < 12; ++step) {
      // More rows than the step before in some steps, so that not all can be peeled.
      Gradients gradients = normal_rows(3, step % 3 == 0 ? 0.3 : 0.05, step);
      for (const auto& gradient : gradients)
        for (std::size_t i = 0; i < balance.size(); ++i) balance[i] += static_cast<double>(gradient[i]);
      workers.step(gradients);
      for (std::size_t w = 1; w < 3; ++w) ASSERT_EQ(gradients[0], gradients[w]);
      for (std::size_t i = 0; i < balance.size(); ++i) balance[i] -= 3 * static_cast<double>(gradients[0][i]);
    }
    for (int rank = 0; rank < 3; ++rank) {
      const auto residual = workers.residual(rank);
      for (std::size_t i = 0; i < balance.size(); ++i) balance[i] -= static_cast<double>(residual[i]);
    }
    for (const double rest : balance) ASSERT_NEAR(rest, 0, 2e-3) << spec;
  }
}

// Rows beyond what the table was made for: with feedback they are estimated by something that is no further off than nothing.
TEST(S2Peel, WhatDoesNotPeelIsEstimatedByAContraction) {
  double error = 0, whole = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    Workers worker(embedding(), 1, {.compressor = "s2:mode=peel,feedback=on"});
    for (unsigned step = 0; step < 40; ++step) {  // until it expects few rows
      Gradients few = normal_rows(1, 0.01, 100 * seed + step);
      worker.step(few);
    }
    Gradients gradients = normal_rows(1, 0.3, seed);
    whole += energy(gradients[0]);
    worker.step(gradients);
    const double left = energy(worker.residual(0));
    EXPECT_GT(left, 0);
    error += left;
  }
  EXPECT_LT(error, 0.98 * whole);
}

TEST(S2Peel, OneRoundOnceItKnowsHowManyRowsThereAre) {
  Workers workers(embedding(), 4, {.compressor = "s2:mode=peel"});
  Gradients first = normal_rows(4, 0.05, 7);
  workers.step(first);
  const std::uint64_t before = workers.reducer(0).counters().rounds;
  for (unsigned step = 0; step < 100; ++step) {
    Gradients gradients = normal_rows(4, 0.05, 7);
    workers.step(gradients);
  }
  EXPECT_LE(workers.reducer(0).counters().rounds - before, 105u);  // now and then two rows share all their cells
}

// Residuals of rows that nobody uses wait, and cost nothing.
TEST(S2Stage, KeepsFeedbackByRows) {
  Workers workers(embedding(), 2, {.compressor = "s2:mode=exact/casq:bits=1"});
  Gradients first = normal_rows(2, 0.2, 1);
  const Gradients used = first;
  workers.step(first);
  const auto residual = workers.residual(0);
  EXPECT_GT(energy(residual), 0);
  Gradients second(2, std::vector<float>(kRows * kRow));
  second[0][0] = 1;  // row 0 alone
  workers.step(second);
  const auto after = workers.residual(0);
  for (std::size_t i = kRow; i < after.size(); ++i) ASSERT_EQ(after[i], residual[i]);
  for (std::size_t i = kRow; i < after.size(); ++i) ASSERT_EQ(second[0][i], 0);
}

TEST(S2Auto, TakesTheCheapestOfTheLosslessModes) {
  for (const double density : {0.002, 0.05, 0.5})
    for (const int count : {2, 4, 8}) {
      const auto traffic = [&](const std::string& spec) {
        Workers workers(embedding(), count, {.compressor = spec, .link = {.bytes_per_second = 1e6, .round_seconds = 1e-9}});
        double before = 0;
        for (unsigned step = 0; step < 3; ++step) {
          Gradients gradients = normal_rows(count, density, 11);
          before = workers.reducer(0).counters().traffic_bytes;
          workers.step(gradients);
        }
        return workers.reducer(0).counters().traffic_bytes - before;
      };
      const double best = std::min({traffic("s2:mode=exact"), traffic("s2:mode=gather"), traffic("s2:mode=split"), traffic("none")});
      EXPECT_LE(traffic("s2:mode=auto"), 1.25 * best + 1200) << density << ", " << count << " workers";
    }
}

TEST(S2, SaysThatItFellBack) {
  Workers workers(embedding(), 2, {.compressor = "s2:mode=exact"});
  Gradients gradients = normal_rows(2, 1, 1);
  workers.step(gradients);
  EXPECT_EQ(workers.reducer(0).counters().fallbacks, 1u);
  gradients = normal_rows(2, 0.1, 1);
  workers.step(gradients);
  EXPECT_EQ(workers.reducer(0).counters().fallbacks, 1u);
  EXPECT_EQ(workers.reducer(0).counters().row_elements, 2 * kRows * kRow);
}

TEST(S2, StateComesBack) {
  for (const std::string spec : {"s2:mode=sketch", "s2:mode=peel", "s2:mode=auto", "s2:mode=exact/casq:bits=2"}) {
    Workers whole(embedding(), 2, {.compressor = spec}), resumed(embedding(), 2, {.compressor = spec});
    for (unsigned step = 0; step < 6; ++step) {
      Gradients gradients = normal_rows(2, 0.1, step), again = gradients;
      whole.step(gradients);
      if (step == 3)
        for (int rank = 0; rank < 2; ++rank) {
          Reducer fresh(embedding(), {.compressor = spec, .rank = rank, .world_size = 2});
          fresh.load_state(resumed.reducer(rank).state());
          resumed.reducer(rank).load_state(fresh.state());
        }
      resumed.step(again);
      ASSERT_EQ(gradients, again) << spec << ", step " << step;
    }
  }
}

std::size_t live_bytes() { return kSanitized ? 0 : mallinfo2().uordblks; }
constexpr int kSteps = kSanitized ? 300 : 10000;

class S2Soak : public ::testing::TestWithParam<const char*> {};

TEST_P(S2Soak, MemoryStaysFlatAndWorkersAgree) {
  const Layout layout({{"embedding", {200, 8}}, {"other", {50, 3}}});
  in_parallel(2, [&](int rank, Communicator& communicator) {
    Reducer reducer(layout, {.compressor = GetParam(), .rank = rank, .world_size = 2});
    std::vector<float> gradient(layout.elements());
    const auto parameters = parameters_of(layout, gradient);
    std::size_t warm = 0;
    for (int step = 0; step < kSteps; ++step) {
      std::mt19937 random(static_cast<unsigned>(step % 50 * 2 + rank));
      std::ranges::fill(gradient, 0.0f);
      for (int r = 0; r < 12; ++r) {
        const std::size_t row = random() % 200;
        for (std::size_t i = 0; i < 8; ++i) gradient[8 * row + i] = static_cast<float>(random() % 100) - 50;
      }
      Reduction reduction = reducer.reduce(parameters);
      run(reduction, communicator);
      if (step == kSteps / 10) warm = live_bytes();
    }
    EXPECT_LT(live_bytes(), warm + 65536) << "a few bytes a step";
  });
}

INSTANTIATE_TEST_SUITE_P(Specs, S2Soak,
                         ::testing::Values("s2:mode=auto", "s2:mode=split", "s2:mode=peel", "s2:mode=sketch",
                                           "s2:mode=exact/casq:bits=2,retrain=500", "sparcml", "coordinates"));

}  // namespace
}  // namespace thinwire::testing
