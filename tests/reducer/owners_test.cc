// Reduce-scatter: what every row that serves owners does where each parameter has an owner, who alone gets its mean.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "kernels/half.h"
#include "reducer/owned_layout.h"
#include "reducer/reseal.h"
#include "reducer/sample_gradients.h"

namespace thinwire::testing {
namespace {

ReducerOptions options_of(const std::string& spec, int workers) {
  return {.compressor = spec, .seed = 3, .keep_old_residuals = true, .owners = owners_of(workers), .measure_every = 2};
}

std::vector<double> sum_over_workers(const Gradients& gradients) {
  std::vector<double> sums(gradients.front().size());
  for (const auto& gradient : gradients)
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(gradient[i]);
  return sums;
}

std::vector<double> all_residuals(Workers& workers) {
  Gradients residuals;
  for (int rank = 0; rank < workers.count(); ++rank) residuals.push_back(workers.residual(rank));
  return sum_over_workers(residuals);
}

class Rowwise : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Rows, Rowwise, ::testing::ValuesIn(specs_that_serve()), name_of_spec);

TEST_P(Rowwise, OwnersAloneGetMeansAndNothingIsLost) {
  const ChosenCompressor chosen = make_compressor(GetParam());
  for (const int count : kTriedCounts)
    for (const char* content : {"normal", "sparse", "one_worker_zero"}) {
      SCOPED_TRACE(std::to_string(count) + " workers, " + content);
      Workers workers(layout_of(count), count, options_of(GetParam(), count));
      double largest = 0;
      for (unsigned step = 0; step < 3; ++step) {
        const Gradients given = make_gradients(content, count, workers.layout().elements(), step + 1);
        const std::vector<double> before = all_residuals(workers), inputs = sum_over_workers(given);
        Gradients gradients = given;
        workers.step(gradients);
        const std::vector<double> after = all_residuals(workers);
        for (std::size_t i = 0; i < inputs.size(); ++i) largest = std::max({largest, std::abs(inputs[i]), std::abs(before[i])});
        for_each_owner(workers, [&](std::size_t owner, std::size_t begin, std::size_t end) {
          for (std::size_t rank = 0; rank < given.size(); ++rank) {
            const auto part = [&](const Gradients& of) { return std::span(of[rank]).subspan(begin, end - begin); };
            const bool is_as_given = std::ranges::equal(part(given), part(gradients));
            ASSERT_TRUE(rank == owner || is_as_given) << "of worker " << rank << ", who is not the owner";
          }
          double off = 0;
          for (std::size_t i = begin; i < end; ++i) {
            const double mean = static_cast<double>(gradients[owner][i]);
            ASSERT_TRUE(std::isfinite(mean));
            off = std::max(off, std::abs(inputs[i] + before[i] - count * mean - after[i]));
          }
          if (!chosen.claims.conserves || !(chosen.feedback || chosen.claims.lossless)) return;
          EXPECT_LE(off, 1e-5 * largest + count * 1e-30);
        });
      }
    }
}

// The first half of what scatter sends, head and padding apart; in one round unless codes have any length.
TEST_P(Rowwise, HalfIsSent) {
  constexpr int kWorkers = 4;
  Workers workers(layout_of(kWorkers), kWorkers, options_of(GetParam(), kWorkers));
  Gradients gradients = make_gradients("normal", kWorkers, workers.layout().elements());
  workers.step(gradients);
  const Counters counters = workers.reducer(0).counters();
  EXPECT_EQ(counters.second_bytes, 0U);
  const double elements = static_cast<double>(workers.layout().elements());
  EXPECT_DOUBLE_EQ(counters.plain_traffic_bytes, 0.75 * 4 * elements);
  if (!make_compressor(GetParam()).claims.lossless) return;
  EXPECT_NEAR(counters.traffic_bytes, 0.75 * 4 * elements, 3 * 4 * 64);
}

TEST_P(Rowwise, ANanOfAnyWorkerFailsTheStepOfAll) {
  constexpr int kWorkers = 3;
  Workers workers(layout_of(kWorkers), kWorkers, options_of(GetParam(), kWorkers));
  Gradients gradients = make_gradients("normal", kWorkers, workers.layout().elements());
  workers.step(gradients);
  const std::vector<double> before = all_residuals(workers);
  gradients = make_gradients("normal", kWorkers, workers.layout().elements(), 2);
  gradients[1][5] = std::nanf("");  // of what worker 0 owns
  workers.step(gradients);
  EXPECT_EQ(all_residuals(workers), before);
  for (int rank = 0; rank < kWorkers; ++rank) {
    EXPECT_EQ(workers.reducer(rank).counters().failed_steps, 1U);
    EXPECT_TRUE(std::isnan(gradients[static_cast<std::size_t>(rank)].back()));
  }
}

TEST(OwnersOfFloats, NoneIsTheMeanInRankOrder) {
  for (const int count : {2, 3, 4}) {
    Workers workers(layout_of(count), count, options_of("none", count));
    const Gradients given = make_gradients("laplace", count, workers.layout().elements());
    Gradients gradients = given;
    workers.step(gradients);
    for_each_owner(workers, [&](std::size_t owner, std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        float sum = given[0][i];
        for (std::size_t rank = 1; rank < given.size(); ++rank) sum += given[rank][i];
        ASSERT_EQ(gradients[owner][i], sum * (1.0f / static_cast<float>(count)));
      }
    });
  }
}

// As many workers' halves as there are, each of them rounded once, and their sum not at all.
TEST(OwnersOfFloats, SixteenBitsAreSummedAsFloats) {
  Workers workers(layout_of(4), 4, options_of("bf16", 4));
  const Gradients given = make_gradients("laplace", 4, workers.layout().elements());
  Gradients gradients = given;
  workers.step(gradients);
  for_each_owner(workers, [&](std::size_t owner, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      float sum = 0;
      for (const auto& gradient : given) sum += kernels::value_of_bf16(kernels::bf16_of(gradient[i]));
      ASSERT_EQ(gradients[owner][i], 0.25f * sum);
    }
  });
}

// Turns a float of what worker 1 has sent into a NaN, and makes the checksum right.
class NanCommunicator : public Communicator {
 public:
  explicit NanCommunicator(Communicator& real) : real_(real) {}
  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  void abandon() noexcept override { real_.abandon(); }
  void perform(const Collective& collective) override {
    real_.perform(collective);
    spoil_and_reseal(collective.result.last(collective.result.size() / 2), 1, [](std::span<std::byte> message) {
      std::ranges::fill(message.last(sizeof(float)), std::byte{0xff});
    });
  }

 private:
  Communicator& real_;
};

TEST(OwnersOfFloats, ForeignNansAreRefused) {
  const Layout layout({{"a@0", {40}}, {"a@1", {40}}});
  for (const char* spec : {"none", "bf16", "fp16"}) {
    SCOPED_TRACE(spec);
    Workers workers(layout, 2, {.compressor = spec, .keep_old_residuals = true, .owners = {0, 1}});
    std::vector<float> gradient(80, 1.0f);
    in_parallel(2, [&](int rank, Communicator& communicator) {
      std::vector<float> mine = gradient;
      Reduction reduction = workers.reducer(rank).reduce(parameters_of(layout, mine));
      NanCommunicator spoilt(communicator);
      Communicator& used = rank == 0 ? static_cast<Communicator&>(spoilt) : communicator;
      if (rank == 0) {
        EXPECT_THROW(run(reduction, used), PayloadError);
        EXPECT_EQ(mine, gradient);
      } else {
        run(reduction, used);
      }
    });
  }
}

// Large modules take several messages; each has something for every owner.
TEST(OwnersOfFloats, MessagesAreBalanced) {
  constexpr int kWorkers = 2;
  const Layout layout({{"a@0", {5000000}}, {"a@1", {5000000}}});
  Workers workers(layout, kWorkers, {.compressor = "none", .keep_old_residuals = true, .owners = {0, 1}});
  Gradients gradients = make_gradients("ramp", kWorkers, layout.elements());
  workers.step(gradients);
  const Counters counters = workers.reducer(0).counters();
  EXPECT_EQ(counters.rounds, 2U);
  EXPECT_NEAR(counters.traffic_bytes, 0.5 * 4 * static_cast<double>(layout.elements()), 4 * 32768 + 200);
}

// Every worker's bfloat16 gradients.
struct Halves {
  std::vector<std::uint16_t> values;
  std::vector<ParameterGradient> parameters(const Layout& layout) {
    std::vector<ParameterGradient> all;
    for (std::uint32_t i = 0; i < layout.parameters().size(); ++i)
      all.push_back({i, ElementType::kBfloat16,
                     std::as_writable_bytes(std::span(values).subspan(layout.offset(i), layout.parameters()[i].elements()))});
    return all;
  }
};

// Rounding a mean to 16 bits loses it for all workers, and the owner alone can keep that.
TEST(OwnersOfHalves, WhatRoundingAMeanLosesIsKept) {
  constexpr int kWorkers = 3;
  for (const char* spec : {"casq:bits=4", "bf16:feedback=on", "topk:density=0.2"}) {
    SCOPED_TRACE(spec);
    Workers workers(layout_of(kWorkers), kWorkers, options_of(spec, kWorkers));
    const std::size_t elements = workers.layout().elements();
    std::vector<double> inputs(elements), means(elements);
    for (unsigned step = 0; step < 3; ++step) {
      const Gradients given = make_gradients("laplace", kWorkers, elements, step + 1);
      std::vector<Halves> halves(kWorkers);
      for (std::size_t rank = 0; rank < kWorkers; ++rank)
        for (std::size_t i = 0; i < elements; ++i) {
          halves[rank].values.push_back(kernels::bf16_of(given[rank][i]));
          inputs[i] += static_cast<double>(kernels::value_of_bf16(halves[rank].values.back()));
        }
      in_parallel(kWorkers, [&](int rank, Communicator& communicator) {
        const auto parameters = halves[static_cast<std::size_t>(rank)].parameters(workers.layout());
        Reduction reduction = workers.reducer(rank).reduce(parameters, 0, 4.0);  // a loss scale
        run(reduction, communicator);
      });
      for_each_owner(workers, [&](std::size_t owner, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) means[i] += static_cast<double>(kernels::value_of_bf16(halves[owner].values[i]));
      });
    }
    const std::vector<double> left = all_residuals(workers);
    for (std::size_t i = 0; i < elements; ++i) ASSERT_NEAR(inputs[i] / 4, kWorkers * means[i] / 4 + left[i], 1e-4) << "element " << i;
  }
}

// Beyond what its gradient's type holds: its owner finds it out, and the others are told by whoever drives them.
TEST(OwnersOfHalves, AMeanThatCannotBeStoredFailsTheStepWhereWorkersSaySo) {
  constexpr int kWorkers = 2;
  const Layout layout({{"a@0", {40}}, {"a@1", {40}}});
  const ReducerOptions options = {.compressor = "casq:bits=8", .keep_old_residuals = true, .owners = {0, 1}};
  Workers workers(layout, kWorkers, options);
  for (int rank = 0; rank < kWorkers; ++rank) {
    std::vector<ParameterState> states = workers.reducer(rank).state();
    states[1].residual.assign(40, 1e6f);
    workers.reducer(rank).load_state(states);
  }
  bool committed[kWorkers], lost[kWorkers];
  in_parallel(kWorkers, [&](int rank, Communicator& communicator) {
    std::vector<std::uint16_t> halves(80, 0x3c00);
    std::vector<ParameterGradient> gradients;
    for (std::uint32_t i = 0; i < 2; ++i)
      gradients.push_back({i, ElementType::kFloat16, std::as_writable_bytes(std::span(halves).subspan(40 * i, 40))});
    Reducer& reducer = workers.reducer(rank);
    reducer.begin_step();
    Reduction reduction = reducer.reduce(gradients);
    run(reduction, communicator);
    lost[rank] = halves[40 * static_cast<std::size_t>(rank)] == 0x7e00;
    if (!lost[rank]) reducer.fail_step();
    committed[rank] = reducer.end_step();
  });
  EXPECT_FALSE(lost[0]);
  EXPECT_TRUE(lost[1]);
  for (int rank = 0; rank < kWorkers; ++rank) {
    EXPECT_FALSE(committed[rank]);
    EXPECT_EQ(workers.residual(rank)[0], 0.0f);
    EXPECT_EQ(workers.residual(rank)[40], 1e6f);
  }
}

TEST(OwnersRefused, WhatCannotWork) {
  const Layout layout({{"a", {40}}, {"b", {40}}});
  const auto expect = [&](ReducerOptions options, const std::string& said) {
    options.world_size = std::max(2, static_cast<int>(options.hosts.size()));
    try {
      const Reducer reducer(layout, options);
      ADD_FAILURE() << "not refused: " << said;
    } catch (const ArgumentError& error) {
      EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
    }
  };
  expect({.compressor = "none", .keep_old_residuals = true, .owners = {0}}, "there are 1 owners and 2 parameters");
  expect({.compressor = "none", .keep_old_residuals = true, .owners = {0, 2}}, "has owner 2; with 2 workers it must be from 0 to 1");
  expect({.compressor = "none", .owners = {0, 1}}, "keep_old_residuals");
  expect({.compressor = "none", .hosts = {0, 0, 1, 1}, .keep_old_residuals = true, .owners = {0, 1}}, "owners with hosts");
  for (const char* spec : {"randomk:density=.1", "powersgd:rank=2", "s2", "gradiveq:ratio=16", "qsgd:bits=4,reduce=sum"})
    expect({.compressor = spec, .keep_old_residuals = true, .owners = {0, 1}}, "averages for all workers alike");
}

TEST(OwnersRefused, WorkersWithOtherOwnersDoNotAgree) {
  const Layout layout({{"a", {40}}, {"b", {40}}});
  const ReducerOptions options = {.compressor = "none", .world_size = 2, .keep_old_residuals = true, .owners = {0, 1}};
  ReducerOptions other = options;
  other.owners = {1, 0};
  EXPECT_NE(Reducer(layout, options).fingerprint(), Reducer(layout, other).fingerprint());
}

}  // namespace
}  // namespace thinwire::testing
