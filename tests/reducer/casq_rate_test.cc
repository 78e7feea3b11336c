// casq:rate=: the rate, the step that parameters share, and what a message holds.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "compressors/rate_chunk_reference.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"
#include "sanitized.h"

namespace thinwire::testing {
namespace {

// Layers and their rows differ in scale, as those of networks do.
const Layout& layout() {
  static const Layout layout({{"a", {600, 300}}, {"b", {64, 64}}, {"c", {900, 100}}, {"d", {40}}, {"e", {7, 333}}});
  return layout;
}

// scales: of each parameter. A row's scale is nearly the same in every step.
std::vector<float> layered_gradient(const std::vector<double>& scales, unsigned seed) {
  std::mt19937 random(seed), rows(1);
  std::normal_distribution<double> normal;
  std::vector<float> gradient;
  for (std::size_t p = 0; p < scales.size(); ++p) {
    double row = 1;
    for (std::uint64_t i = 0; i < layout().parameters()[p].elements(); ++i) {
      if (i % 300 == 0) row = std::exp(std::normal_distribution<double>()(rows) + 0.1 * normal(random));
      gradient.push_back(static_cast<float>(scales[p] * row * normal(random)));
    }
  }
  return gradient;
}

// Workers that reduce two buckets a step.
class Training {
 public:
  Training(const std::string& spec, int workers) : workers_(layout(), workers, {.compressor = spec, .small_uncompressed = false}) {}

  // Returns the bits an entry that a worker's payloads took, all counted.
  double step(Gradients& gradients, bool fail = false) {
    const Counters before = workers_.reducer(0).counters();
    in_parallel(workers_.count(), [&](int rank, Communicator& communicator) {
      Reducer& reducer = workers_.reducer(rank);
      reducer.begin_step();
      for (const auto& [first, last] : {std::pair{2, 5}, std::pair{0, 2}}) {
        const auto bucket = parameters_of(layout(), gradients[static_cast<std::size_t>(rank)], static_cast<std::size_t>(first), static_cast<std::size_t>(last));
        Reduction reduction = reducer.reduce(bucket);
        run(reduction, communicator);
      }
      if (fail) reducer.fail_step();
      EXPECT_EQ(reducer.end_step(), !fail);
    });
    const Counters after = workers_.reducer(0).counters();
    rounds_ = after.rounds - before.rounds;
    second_bits_ = 8.0 * static_cast<double>(after.second_bytes - before.second_bytes) / static_cast<double>(layout().elements());
    return 8.0 * static_cast<double>(after.payload_bytes - before.payload_bytes) / static_cast<double>(layout().elements());
  }
  Workers& workers() { return workers_; }
  std::uint64_t rounds() const { return rounds_; }
  double second_bits() const { return second_bits_ * workers_.count(); }  // of all owners' shards

 private:
  Workers workers_;
  std::uint64_t rounds_ = 0;
  double second_bits_ = 0;
};

Gradients layered_gradients(int workers, const std::vector<double>& scales, unsigned seed) {
  Gradients gradients;
  for (int w = 0; w < workers; ++w) gradients.push_back(layered_gradient(scales, seed * 8 + static_cast<unsigned>(w)));
  return gradients;
}

// Scales wander, each parameter's by itself.
TEST(CasqRate, HoldsItsRate) {
  // The sanitizers are slow, and look for what goes wrong alike at any rate.
  const unsigned steps = kSanitized ? 3 : 30;
  for (const double rate : kSanitized ? std::vector{1.0} : std::vector{0.1, 1.0, 4.0}) {
    for (const std::string how : {"feedback=on", "feedback=off", "reduce=scatter"}) {
      const bool in_shards = how == "reduce=scatter";  // of a chunk or two, the longest of which counts for all
      const int workers = in_shards ? 3 : 2;
      Training training("casq:rate=" + std::to_string(rate) + "," + how, workers);
      std::vector<double> scales = {1, 0.1, 3, 0.5, 0.02};
      std::mt19937 random(3);
      std::normal_distribution<double> normal;
      double of_ten = 0;
      int off = 0;
      for (unsigned step = 0; step < steps; ++step) {
        for (double& scale : scales) scale *= std::exp(0.02 * normal(random));
        Gradients gradients = layered_gradients(workers, scales, step);
        const double bits = training.step(gradients);
        EXPECT_LT(bits, (step < 10 ? 1.5 : 1.2) * rate) << how << ", step " << step;
        off += step >= 10 && std::fabs(bits / rate - 1) > 0.1 ? 1 : 0;
        of_ten += bits / 10;
        if (step % 10 != 9) continue;
        // While residuals still grow, bits do from step to step.
        if (step >= 20) { EXPECT_NEAR(of_ten / rate, 1, in_shards ? 0.02 : 0.005) << how << ", rate " << rate << ", step " << step; }
        of_ten = 0;
      }
      EXPECT_LE(off, 1) << how << ", rate " << rate;
    }
  }
}

// Everything, or one bucket, is suddenly a hundred times as large or as small, so that bits move from one message to another. Shards of a
// few chunks, as here, differ in length, and are filled up to the longest.
TEST(CasqRate, SuddenChangesHardlyShow) {
  for (const double rate : kSanitized ? std::vector{1.0} : std::vector{0.1, 1.0})
    for (const std::string reduce : {"gather", "scatter"}) {
      Training training("casq:rate=" + std::to_string(rate) + ",feedback=off,reduce=" + reduce, 2);
      unsigned step = 0;
      for (const auto& factors : {std::array{1.0, 1.0}, std::array{100.0, 100.0}, std::array{1.0, 100.0}, std::array{100.0, 1.0},
                                  std::array{0.01, 0.01}, std::array{0.01, 100.0}})
        for (int times = 0; times < (kSanitized ? 1 : 3); ++times) {
          Gradients gradients = layered_gradients(2, {factors[0], 0.1 * factors[0], 3 * factors[1], 0.5, 0.02}, step++);
          EXPECT_LT(training.step(gradients), (reduce == "gather" || factors[0] == factors[1] ? 2 : 2.5) * rate) << "step " << step << ", " << reduce;
        }
    }
}

TEST(CasqRate, TakesARoundABucketWhereLengthsAreAsForeseen) {
  Training training("casq:rate=0.5,feedback=off", 3);
  std::uint64_t rounds = 0;
  for (unsigned step = 0; step < 20; ++step) {
    Gradients gradients = layered_gradients(3, {1, 0.1, 3, 0.5, 0.02}, step);
    training.step(gradients);
    if (step >= 2) rounds += training.rounds();
  }
  EXPECT_LE(rounds, 2 * 18 + 3U);
}

// What one worker gathers, to be read by the words of docs/wire_format.md.
std::vector<std::byte> gathered_message(Reducer& reducer, std::vector<float>& gradient) {
  std::vector<std::byte> message;
  Reduction reduction = reducer.reduce(parameters_of(layout(), gradient));
  while (const Collective* collective = reduction.next()) {
    EXPECT_EQ(collective->kind, CollectiveKind::kGather);
    std::memcpy(collective->result.data(), collective->data.data(), collective->data.size());
    message.insert(message.end(), collective->data.begin(), collective->data.end());
  }
  return message;
}

template <class T>
T read_at(std::span<const std::byte> bytes, std::size_t position) {
  T value;
  std::memcpy(&value, bytes.data() + position, sizeof value);
  return value;
}

// But for chunks that were encoded again, with a larger one, so that the message is no longer than foreseen.
TEST(CasqRate, AMessageHoldsItsChunksAtOneStep) {
  Reducer reducer(layout(), {.compressor = "casq:rate=1", .small_uncompressed = false});
  for (unsigned step = 0; step < 3; ++step) {
    std::vector<float> gradient = layered_gradient({1, 0.1, 3, 0, 0.02}, step);  // one is unused
    const std::vector<std::byte> sent = gathered_message(reducer, gradient);
    std::vector<std::uint64_t> chunks;
    for (const Parameter& parameter : layout().parameters())
      for (std::uint64_t first = 0; first < parameter.elements(); first += 32768) chunks.push_back(std::min<std::uint64_t>(32768, parameter.elements() - first));
    const std::size_t announcement = 8, lengths = announcement + 12 + (chunks.size() + 7) / 8;
    EXPECT_EQ(read_at<std::uint8_t>(sent, announcement), 19);
    std::size_t at = lengths + 4 * chunks.size(), element = 0;
    std::vector<std::uint16_t> codes;
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      const auto length = read_at<std::uint32_t>(sent, lengths + 4 * c);
      std::vector<float> expected(chunks[c]);
      if (length > 0) {
        const auto code = read_at<std::uint16_t>(sent, at);
        codes.push_back(code);
        expected = casq::reference::decode(std::span(sent).subspan(at + 2, length - 2), chunks[c], std::bit_cast<float>(std::uint32_t{code} << 15));
      }
      for (std::size_t i = 0; i < chunks[c]; ++i, ++element) ASSERT_NEAR(gradient[element], expected[i], 1e-6 * std::fabs(expected[i])) << element;
      at += length;
    }
    const auto common = std::ranges::min(codes), largest = std::ranges::max(codes);
    EXPECT_GT(common, 0);
    EXPECT_TRUE(largest == common || at <= announcement + 12 + layout().elements() / 8);
  }
}

TEST(CasqRate, AFailedStepTeachesNothing) {
  for (const char* spec : {"casq:rate=0.5", "casq:rate=0.5,reduce=scatter"}) {
    Training training(spec, 2);
    const auto memories = [&] {
      std::vector<std::vector<std::byte>> all;
      for (int rank = 0; rank < 2; ++rank)
        for (const ParameterState& state : training.workers().reducer(rank).state()) all.push_back(state.memory);
      return all;
    };
    for (unsigned step = 0; step < 2; ++step) {
      Gradients gradients = layered_gradients(2, {1, 0.1, 3, 0.5, 0.02}, step);
      training.step(gradients);
    }
    const auto before = memories();
    Gradients wild = layered_gradients(2, {50, 50, 0.1, 9, 1}, 90), not_finite = wild;
    not_finite[1][5] = std::numeric_limits<float>::infinity();
    training.step(wild, true);
    EXPECT_EQ(memories(), before) << spec;
    training.step(not_finite, true);
    EXPECT_EQ(memories(), before) << spec;
  }
}

TEST(CasqRate, GoesOnFromASavedState) {
  for (const char* spec : {"casq:rate=0.5", "casq:rate=0.5,reduce=scatter,second=1,weight=0.5"}) {
    Training whole(spec, 2);
    for (unsigned step = 0; step < 3; ++step) {
      Gradients gradients = layered_gradients(2, {1, 0.1, 3, 0.5, 0.02}, step);
      whole.step(gradients);
    }
    Training resumed(spec, 2);
    for (int rank = 0; rank < 2; ++rank) resumed.workers().reducer(rank).load_state(whole.workers().reducer(rank).state());
    Gradients gradients = layered_gradients(2, {1, 0.1, 3, 0.5, 0.02}, 3), same = gradients;
    EXPECT_EQ(whole.step(gradients), resumed.step(same)) << spec;
    EXPECT_EQ(gradients, same) << spec;
  }
}

// Of a message of a few elements most is its head: no state that a step leaves behind may be refused.
TEST(CasqRate, StatesOfTheShortestParametersAreLoaded) {
  for (const char* spec : {"casq:rate=1", "casq:rate=8,reduce=scatter"})
    for (const std::int64_t elements : {1, 2, 5})
      for (const int count : {2, 7, 48}) {
        SCOPED_TRACE(std::string(spec) + ", " + std::to_string(elements) + " elements, " + std::to_string(count) + " workers");
        const Layout shortest({{"p", {elements}}});
        Workers workers(shortest, count, {.compressor = spec, .small_uncompressed = false});
        for (unsigned step = 0; step < 2; ++step) {
          Gradients gradients = make_gradients("normal", count, shortest.elements(), step);
          workers.step(gradients);
          for (int rank = 0; rank < count; ++rank) workers.reducer(rank).load_state(workers.reducer(rank).state());
        }
      }
}

TEST(CasqRate, ASecondRateIsOfMeans) {
  Training training("casq:rate=0.25,second=1,reduce=scatter", 2);
  double first = 0, second = 0;
  for (unsigned step = 0; step < 12; ++step) {
    Gradients gradients = layered_gradients(2, {1, 0.1, 3, 0.5, 0.02}, step);
    const double bits = training.step(gradients);
    if (step < 2) continue;
    first += bits / 10;
    second += training.second_bits() / 10;
  }
  EXPECT_NEAR(first / 0.25, 1, 0.4);  // shards of a few chunks are filled up to the longest
  EXPECT_NEAR(second / 1, 1, 0.4);
}

// From a million elements on residuals and means are written past the caches, wherever in a line of memory a gradient begins.
TEST(CasqRate, LosesNothingOfAMillionElements) {
  const Layout large({{"a", {1021, 999}}, {"b", {7}}, {"c", {513, 129}}});
  constexpr int kCount = 3;
  constexpr double kLossScale = 8;
  for (const char* spec : {"casq:rate=0.3,reduce=scatter", "casq:rate=2,reduce=scatter", "casq:rate=1,reduce=gather"}) {
    Workers workers(large, kCount, {.compressor = spec});
    std::vector<double> owed(large.elements(), 0);  // of all workers' residuals
    for (unsigned step = 0; step < (kSanitized ? 2 : 4); ++step) {
      const Gradients inputs = make_gradients("normal", kCount, large.elements(), step);
      std::vector<std::vector<float>> memory(kCount);
      in_parallel(kCount, [&](int rank, Communicator& communicator) {
        const auto r = static_cast<std::size_t>(rank);
        const std::size_t first = 5 * r + step;  // places in a line that differ
        memory[r].assign(first, 99.0F);
        for (const float value : inputs[r]) memory[r].push_back(static_cast<float>(kLossScale) * value);
        const auto parameters = parameters_of(large, std::span(memory[r]).subspan(first));
        Reduction reduction = workers.reducer(rank).reduce(parameters, 0, kLossScale);
        run(reduction, communicator);
        EXPECT_EQ(std::count(memory[r].begin(), memory[r].begin() + static_cast<std::ptrdiff_t>(first), 99.0F), static_cast<std::ptrdiff_t>(first));
        memory[r].erase(memory[r].begin(), memory[r].begin() + static_cast<std::ptrdiff_t>(first));
      });
      for (int rank = 1; rank < kCount; ++rank) ASSERT_EQ(memory[static_cast<std::size_t>(rank)], memory[0]) << spec;
      std::vector<double> all = owed;
      std::ranges::fill(owed, 0);
      for (int rank = 0; rank < kCount; ++rank) {
        const std::vector<float> residual = workers.residual(rank);
        for (std::size_t i = 0; i < all.size(); ++i) {
          all[i] += double{inputs[static_cast<std::size_t>(rank)][i]} - memory[0][i] / kLossScale - residual[i];
          owed[i] += residual[i];
        }
      }
      const auto [least, most] = std::ranges::minmax(all);
      EXPECT_LT(std::max(-least, most), 1e-5) << spec << ", step " << step;
    }
  }
}

// A parameter's step follows its scale.
TEST(CasqRate, AWeightSparesParametersOfSmallScale) {
  const auto error_of_small = [](const char* spec) {
    Training training(spec, 1);
    double error = 0, energy = 0;
    for (unsigned step = 0; step < 4; ++step) {
      Gradients gradients = layered_gradients(1, {1, 0.01, 1, 1, 1}, step);
      const std::vector<float> exact = gradients[0];
      training.step(gradients);
      const auto begin = layout().offset(1), end = layout().offset(2);
      for (std::uint64_t i = begin; step > 0 && i < end; ++i) {
        error += std::pow(double{gradients[0][i]} - double{exact[i]}, 2);
        energy += std::pow(double{exact[i]}, 2);
      }
    }
    return error / energy;
  };
  EXPECT_GT(error_of_small("casq:rate=0.5,feedback=off"), 0.9);
  EXPECT_LT(error_of_small("casq:rate=0.5,feedback=off,weight=1"), 0.4);
}

TEST(CasqRate, RefusesWhatDoesNotGoTogether) {
  for (const char* spec : {"casq:rate=0.01", "casq:rate=1,bits=3", "casq:rate=1,scope=block", "casq:second=1", "casq:weight=0.5", "casq:rate=9"})
    EXPECT_THROW(canonical_spec(spec), ArgumentError) << spec;
}

}  // namespace
}  // namespace thinwire::testing
