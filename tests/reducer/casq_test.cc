// CASQ against slow, obvious references.
#include "compressors/casq/casq.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "compressors/casq/clusters.h"
#include "kernels/statistics.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

using Histogram = kernels::SignedHistogram;

struct Weighted {
  double value, weight;
};

double spread(const std::vector<Weighted>& points, std::size_t begin, std::size_t end) {
  double weight = 0, sum = 0, squares = 0;
  for (std::size_t i = begin; i < end; ++i) {
    weight += points[i].weight;
    sum += points[i].weight * points[i].value;
    squares += points[i].weight * points[i].value * points[i].value;
  }
  return weight > 0 ? squares - sum * sum / weight : 0;
}

// The least error over all ways to cut the points from `begin` on into k intervals, by trying all.
double brute_force(const std::vector<Weighted>& points, std::size_t begin, int k) {
  if (k == 1) return spread(points, begin, points.size());
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t end = begin; end <= points.size(); ++end)
    best = std::min(best, spread(points, begin, end) + brute_force(points, end, k - 1));
  return best;
}

double error_of(const std::vector<Weighted>& points, const std::vector<float>& thresholds) {
  std::vector<std::vector<Weighted>> clusters(thresholds.size() + 1);
  for (const Weighted& point : points)
    clusters[static_cast<std::size_t>(
                 std::count_if(thresholds.begin(), thresholds.end(), [&](float t) { return point.value > static_cast<double>(t); }))]
        .push_back(point);
  double error = 0;
  for (const auto& cluster : clusters) error += spread(cluster, 0, cluster.size());
  return error;
}

TEST(OptimalThresholds, AreAsGoodAsTryingEverything) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<std::int32_t> counts(2 * Histogram::kBins);
    std::vector<Weighted> negative, positive;
    for (int i = 0; i < 9; ++i) {
      const int bin = static_cast<int>(random() % Histogram::kBins), sign = trial % 5 == 0 ? 1 : static_cast<int>(random() % 2);
      counts[static_cast<std::size_t>(bin + sign * Histogram::kBins)] = static_cast<std::int32_t>(1 + random() % 1000);
    }
    for (int bin = 0; bin < Histogram::kBins; ++bin) {
      if (const int n = counts[static_cast<std::size_t>(bin)]) negative.insert(negative.begin(), {-kernels::histogram_centre(bin), static_cast<double>(n)});
      if (const int n = counts[static_cast<std::size_t>(bin + Histogram::kBins)]) positive.push_back({kernels::histogram_centre(bin), static_cast<double>(n)});
    }
    std::vector<Weighted> all = negative;
    all.insert(all.end(), positive.begin(), positive.end());
    for (const int clusters : {2, 4}) {
      const auto free = optimal_thresholds(counts, clusters, Signs::kFree);
      const auto apart = optimal_thresholds(counts, clusters, Signs::kApart);
      for (const auto* thresholds : {&free, &apart}) {
        ASSERT_EQ(thresholds->size(), static_cast<std::size_t>(clusters - 1));
        ASSERT_TRUE(std::is_sorted(thresholds->begin(), thresholds->end()));
      }
      double best_apart = std::numeric_limits<double>::infinity();
      for (int k = 1; k < clusters; ++k)
        best_apart = std::min(best_apart, brute_force(negative, 0, k) + brute_force(positive, 0, clusters - k));
      const double scale = spread(all, 0, all.size()) * 1e-6 + 1e-9;
      EXPECT_NEAR(error_of(all, free), brute_force(all, 0, clusters), scale);
      EXPECT_NEAR(error_of(all, apart), best_apart, scale);
      EXPECT_NE(std::find(apart.begin(), apart.end(), 0.0f), apart.end());
    }
  }
}

TEST(OptimalThresholds, OfNothingAreAllowed) {
  const std::vector<std::int32_t> counts(2 * Histogram::kBins);
  EXPECT_EQ(optimal_thresholds(counts, 4, Signs::kFree).size(), 3u);
  EXPECT_EQ(optimal_thresholds(counts, 4, Signs::kApart).size(), 3u);
}

double measured_error(const std::string& spec, const Gradients& gradients) {
  const Layout layout = Layout::flat(gradients[0].size());
  ReducerOptions options;
  options.compressor = spec;
  options.measure_every = 1;
  Workers workers(layout, static_cast<int>(gradients.size()), options);
  Gradients means = gradients;
  workers.step(means);
  const Counters counters = workers.reducer(0).counters();
  return counters.error_energy / counters.measured_energy;
}

// Least errors of Lloyd-Max quantizers: Max 1960 (Gaussian), Adams and Giesler 1978 (Laplace).
TEST(Casq, ReachesTheKnownLeastErrors) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  Gradients gaussian(2, std::vector<float>(400000));
  for (auto& gradient : gaussian)
    for (float& value : gradient) value = 3e-5f * normal(random);
  const Gradients laplace = make_gradients("laplace", 2, 400000);
  EXPECT_NEAR(measured_error("casq:bits=1", gaussian), 0.3634, 0.002);
  EXPECT_NEAR(measured_error("casq:bits=2", gaussian), 0.1175, 0.001);
  EXPECT_NEAR(measured_error("casq:bits=3", gaussian), 0.03454, 0.0005);
  EXPECT_NEAR(measured_error("casq:bits=4", gaussian), 0.009497, 0.0003);
  EXPECT_NEAR(measured_error("casq:bits=2", laplace), 0.1762, 0.002);
  EXPECT_NEAR(measured_error("casq:bits=3", laplace), 0.0545, 0.001);
}

// One worker, one chunk: every decoded value is the mean, in double precision, of the values that decode to it, and the
// values of each cluster are an interval.
TEST(Casq, DecodesToTheMeansOfItsClusters) {
  for (const std::string& content : contents()) {
    if (content == "denormals" || content == "outlier") continue;
    Gradients gradients = make_gradients(content, 1, 5000);
    const std::vector<float> input = gradients[0];
    ReducerOptions options;
    options.compressor = "casq:bits=3";
    Workers workers(Layout::flat(5000), 1, options);
    workers.step(gradients);
    std::vector<std::pair<float, float>> pairs;  // decoded, value
    for (std::size_t i = 0; i < input.size(); ++i) pairs.emplace_back(gradients[0][i], input[i]);
    std::sort(pairs.begin(), pairs.end());
    float before = -std::numeric_limits<float>::infinity();
    int clusters = 0;
    for (std::size_t begin = 0, end; begin < pairs.size(); begin = end, ++clusters) {
      double sum = 0;
      for (end = begin; end < pairs.size() && pairs[end].first == pairs[begin].first; ++end) sum += static_cast<double>(pairs[end].second);
      EXPECT_NEAR(static_cast<double>(pairs[begin].first), sum / static_cast<double>(end - begin), 1e-5 * (1e-9 + std::abs(sum)));
      EXPECT_GE(pairs[begin].second, before) << content;
      before = pairs[end - 1].second;
    }
    EXPECT_LE(clusters, 8);
  }
}

TEST(Casq, TrainsWhenItShould) {
  ReducerOptions options;
  options.compressor = "casq:retrain=3";
  Workers workers(Layout::flat(1000), 2, options);
  std::vector<std::uint64_t> setup;
  for (unsigned step = 0; step < 7; ++step) {
    Gradients gradients = make_gradients("normal", 2, 1000, step);
    workers.step(gradients);
    setup.push_back(workers.reducer(0).counters().setup_bytes / 3584);
  }
  EXPECT_EQ(setup, (std::vector<std::uint64_t>{1, 1, 1, 2, 2, 2, 3}));
}

TEST(Casq, OldThresholdsStillContractWhenGradientsShrink) {
  ReducerOptions options;
  options.compressor = "casq:bits=2,feedback=off,retrain=1000";
  options.measure_every = 1;
  Workers workers(Layout::flat(20000), 2, options);
  double before_error = 0, before_energy = 0;
  for (const float scale : {1.0f, 1e-3f, 1e-6f, 1e3f}) {
    Gradients gradients = make_gradients("laplace", 2, 20000, 9);
    for (auto& gradient : gradients)
      for (float& value : gradient) value *= scale;
    workers.step(gradients);
    const Counters counters = workers.reducer(0).counters();
    EXPECT_LT((counters.error_energy - before_error) / (counters.measured_energy - before_energy), 0.2) << scale;
    before_error = counters.error_energy;
    before_energy = counters.measured_energy;
  }
}

TEST(Casq, SignsApartNeverChangesASign) {
  Gradients gradients = make_gradients("normal", 1, 3000);
  const std::vector<float> input = gradients[0];
  ReducerOptions options;
  options.compressor = "casq:bits=2,signs=apart";
  Workers workers(Layout::flat(3000), 1, options);
  workers.step(gradients);
  for (std::size_t i = 0; i < input.size(); ++i) EXPECT_GE(gradients[0][i] * input[i], 0);
}

// Lloyd's algorithm on values that stay the same never makes the error larger.
TEST(Casq, ThresholdsFollowWhatTheyWereNotTrainedOn) {
  constexpr std::size_t kElements = 70000, kSteps = 12;
  for (const char* spec : {"casq:bits=2,feedback=off", "casq:bits=3,feedback=off", "casq:bits=3,signs=apart,feedback=off"}) {
    SCOPED_TRACE(spec);
    std::vector<float> steps = make_gradients("laplace", 1, kElements)[0];
    std::mt19937 random(5);
    std::vector<float> later(kElements);
    for (float& value : later) value = std::uniform_real_distribution<float>(-1, 1)(random);
    for (std::size_t i = 1; i < kSteps; ++i) steps.insert(steps.end(), later.begin(), later.end());
    const TrialReport report = run_trial(Layout::flat(kElements), steps, 1, kSteps, {.compressor = spec});
    for (std::size_t i = 2; i < kSteps; ++i)
      EXPECT_LE(*report.per_step[i].nmse_worker, *report.per_step[i - 1].nmse_worker * 1.0001) << i;
    EXPECT_LT(*report.per_step.back().nmse_worker, 0.8 * *report.per_step[1].nmse_worker);
  }
}

// Steps that resemble nothing before them. Thresholds in disorder could not be loaded again, and would divide nothing well.
TEST(Casq, ThresholdsStayInOrder) {
  for (const char* spec : {"casq:bits=2", "casq:bits=3", "casq:bits=4", "casq:bits=4,signs=apart"})
    for (unsigned seed = 1; seed < 30; ++seed) {
      Workers workers(Layout::flat(70), 1, {.compressor = spec});
      for (const char* content : {"sparse", "normal", "one_signed", "sparse", "outlier", "ramp"}) {
        Gradients gradients = make_gradients(content, 1, 70, seed);
        workers.step(gradients);
        ASSERT_NO_THROW(workers.reducer(0).load_state(workers.reducer(0).state())) << spec << ", " << content << ", " << seed;
      }
    }
}

}  // namespace
}  // namespace thinwire::testing
