// Thresholds from histograms with fewer distinct values than clusters: what empty clusters leave behind.
#include "compressors/casq/clusters.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/statistics.h"

namespace thinwire {
namespace {

constexpr int kBins = kernels::SignedHistogram::kBins;

struct Count {
  int bin;
  bool positive;
};

std::vector<std::int32_t> histogram(const std::vector<Count>& counts) {
  std::vector<std::int32_t> all(2 * kBins);
  for (const Count& count : counts) all[static_cast<std::size_t>(count.bin + (count.positive ? kBins : 0))] = 1000;
  return all;
}

double value_of(const Count& count) { return (count.positive ? 1 : -1) * kernels::histogram_centre(count.bin); }

// Every pair of distinct values is told apart, whatever the empty clusters do, and nothing depends on what memory held.
TEST(OptimalThresholds, TellFewDistinctValuesApart) {
  const std::vector<std::vector<Count>> inputs = {
      {{192, true}}, {{192, false}}, {{192, true}, {192, false}}, {{0, true}, {kBins - 1, true}},
      {{0, false}, {kBins - 1, false}}, {{100, false}, {200, false}, {200, true}}};
  for (const auto& input : inputs)
    for (const int clusters : {2, 4, 8, 16})
      for (const Signs signs : {Signs::kFree, Signs::kApart}) {
        SCOPED_TRACE(std::to_string(input.size()) + " values, " + std::to_string(clusters) + " clusters");
        const auto thresholds = optimal_thresholds(histogram(input), clusters, signs);
        ASSERT_EQ(thresholds.size(), static_cast<std::size_t>(clusters - 1));
        double largest = 0;
        for (const Count& count : input) largest = std::max(largest, std::abs(value_of(count)));
        for (const float threshold : thresholds) EXPECT_LE(std::abs(threshold), 2 * largest);
        EXPECT_TRUE(std::is_sorted(thresholds.begin(), thresholds.end()));
        EXPECT_EQ(thresholds, optimal_thresholds(histogram(input), clusters, signs));
        if (static_cast<int>(input.size()) > clusters || (signs == Signs::kApart && clusters == 2)) continue;
        std::vector<std::ptrdiff_t> codes;
        for (const Count& count : input)
          codes.push_back(std::count_if(thresholds.begin(), thresholds.end(), [&](float threshold) {
            return value_of(count) > static_cast<double>(threshold);
          }));
        std::sort(codes.begin(), codes.end());
        EXPECT_EQ(std::unique(codes.begin(), codes.end()), codes.end()) << "two values share a cluster";
      }
}

}  // namespace
}  // namespace thinwire
