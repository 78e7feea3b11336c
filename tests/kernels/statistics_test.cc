#include "kernels/statistics.h"

#include <algorithm>

#include "kernels/every_target.h"
#include "kernels/inputs.h"
#include "kernels/plain_sums.h"

namespace thinwire::kernels {
namespace {

class StatisticsTest : public EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, StatisticsTest, all_targets(), target_name);

TEST_P(StatisticsTest, MeasureHasTheBitsOfSixteenLanes) {
  for_each_input(finite_contents, [](const Buffer<float>& input) {
    expect_magnitudes_of(measure(input.span()), input.span());
  });
}

TEST_P(StatisticsTest, MeasureIsCloseToSumsInDoublePrecision) {
  for (const std::size_t n : kSizes) {
    const std::vector<float> values = normal_values(n);
    double sum_abs = 0, sum_squares = 0;
    for (const double x : values) {
      sum_abs += std::fabs(x);
      sum_squares += x * x;
    }
    const Magnitudes actual = measure(values);
    EXPECT_NEAR(actual.sum_abs, sum_abs, 1e-5 * sum_abs);
    EXPECT_NEAR(actual.sum_squares, sum_squares, 1e-5 * sum_squares);
  }
}

TEST_P(StatisticsTest, MeasureSeesWhatIsNotFinite) {
  for_each_input(non_finite_contents, [](const Buffer<float>& input) {
    EXPECT_EQ(measure(input.span()).finite, all_finite(input.span()));
  });
}

TEST_P(StatisticsTest, ScanFindsTheLargestAndWhatIsNotFinite) {
  for (const auto& contents : {finite_contents, non_finite_contents}) {
    for_each_input(contents, [](const Buffer<float>& input) { expect_scanned(scan(input.span()), input.span()); });
  }
}

TEST_P(StatisticsTest, ScanAndMultiplyScansWhatWasThere) {
  for (const auto& contents : {finite_contents, non_finite_contents}) {
    for_each_input(contents, [](Buffer<float> input) {
      const std::vector<float> before = input.elements();
      Buffer<float> expected = input;
      multiply(expected.span(), 1e10F);
      expect_scanned(scan_and_multiply(input.span(), 1e10F), before);
      expect_same_bits(input.span(), expected.span());
      EXPECT_TRUE(input.untouched_before());
    });
  }
}

TEST_P(StatisticsTest, EachBucketByItself) {
  for (const std::size_t bucket : {1U, 5U, 16U, 32U, 100U, 40000U}) {
    for_each_input(finite_contents, [=](Buffer<float> input) {
      const std::size_t count = (input.span().size() + bucket - 1) / bucket;
      Buffer<float> largest(count), factors(count);
      scan_buckets(input.span(), bucket, largest.span());
      Buffer<float> expected = input;
      for (std::size_t b = 0; b < count; ++b) {
        const auto own = expected.span().subspan(b * bucket, std::min(bucket, input.span().size() - b * bucket));
        EXPECT_EQ(largest.span()[b], scan(own).largest) << b;
        factors.span()[b] = 0.5F + static_cast<float>(b);
        multiply(own, factors.span()[b]);
      }
      multiply_buckets(input.span(), bucket, factors.span());
      expect_same_bits(input.span(), expected.span());
      EXPECT_TRUE(input.untouched_before());
    });
  }
}

TEST_P(StatisticsTest, SplitHasTheBitsOfSixteenLanesWhereTheyHoldIt) {
  for_each_input(finite_contents, [](const Buffer<float>& input) {
    const float largest = largest_of(input.span());
    for (const float bound : {0.0F, 0.3F * largest, largest, std::nextafter(largest, INFINITY)}) {
      const auto below = [=](float x) { return std::fabs(x) < bound ? std::fabs(x) : 0; };
      const auto excess = [=](float x) { return std::fabs(x) < bound ? 0 : std::fabs(x) - bound; };
      const auto in_doubles = [&](const auto& term) {
        double sum = 0;
        for (const float x : input.span()) sum += static_cast<double>(term(x));
        return sum;
      };
      const float sums[] = {sum_in_lanes<float>(input.span(), below), sum_in_lanes<float>(input.span(), excess)};
      const bool holds = std::isfinite(sums[0]) && std::isfinite(sums[1]);
      const Split split = split_magnitudes(input.span(), bound);
      EXPECT_EQ(split.from, std::ranges::count_if(input.span(), [=](float x) { return std::fabs(x) >= bound; })) << bound;
      EXPECT_EQ(split.below, holds ? static_cast<double>(sums[0]) : in_doubles(below)) << bound;
      EXPECT_EQ(split.excess, holds ? static_cast<double>(sums[1]) : in_doubles(excess)) << bound;
    }
  });
}

TEST_P(StatisticsTest, ScanSeesOneValueAtAnyPlace) {
  constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (std::size_t place = 0; place < 50; ++place) {
    std::vector<float> values(50, -0.0F);
    values[place] = kDenormal;
    EXPECT_EQ(scan(values).largest, kDenormal) << place;
    values[place] = -kInfinity;
    EXPECT_FALSE(scan(values).finite) << place;
    EXPECT_FALSE(measure(values).finite) << place;
  }
}

TEST_P(StatisticsTest, Multiply) {
  for_each_input(finite_contents, [](Buffer<float> input) {
    std::vector<float> expected = input.elements();
    for (float& x : expected) x *= 0.7F;
    multiply(input.span(), 0.7F);
    expect_same_bits(input.span(), expected);
    EXPECT_TRUE(input.untouched_before());
  });
}

TEST_P(StatisticsTest, SquaredNormHasTheBitsOfSixteenLanes) {
  for_each_input(finite_contents, [](const Buffer<float>& input) {
    const double expected = sum_in_lanes<double>(input.span(), [](float x) { return double{x} * double{x}; });
    EXPECT_EQ(squared_norm(input.span()), expected);
  });
}

TEST_P(StatisticsTest, MomentsHaveTheBitsOfSixteenLanes) {
  for_each_input(finite_contents, [](const Buffer<float>& input) {
    const Moments found = moments(input.span());
    EXPECT_EQ(found.sum, sum_in_lanes<double>(input.span(), [](float x) { return double{x}; }));
    EXPECT_EQ(found.sum_squares, squared_norm(input.span()));
  });
}

// Bins found among edges, which are 16 to an octave and evenly spaced within it.
using Counts = std::vector<std::int32_t>;
constexpr std::size_t kBins = SignedHistogram::kBins;

double edge(std::size_t bin) {
  const int octave = SignedHistogram::kLowestOctave + static_cast<int>(bin / 16);
  return std::ldexp(1.0 + static_cast<double>(bin % 16) / 16, octave);
}
std::size_t bin_of(float magnitude) {
  static const std::vector<double> upper_edges = [] {
    std::vector<double> edges;
    for (std::size_t bin = 1; bin < kBins; ++bin) edges.push_back(edge(bin));
    return edges;
  }();
  const auto above = std::upper_bound(upper_edges.begin(), upper_edges.end(), double{magnitude});
  return static_cast<std::size_t>(above - upper_edges.begin());
}
void count(std::span<const float> values, float inverse_scale, Counts& counts) {
  for (const float x : values) {
    if (std::isfinite(x)) ++counts[bin_of(std::fabs(x) * inverse_scale) + (x > 0 ? kBins : 0)];
  }
}

TEST_P(StatisticsTest, HistogramOfManyContents) {
  for (const auto& contents : {finite_contents, non_finite_contents}) {
    for_each_input(contents, [](const Buffer<float>& input) {
      for (const float inverse_scale : {1.0F, 3.3F}) {
        Counts actual(2 * kBins, 5), expected(2 * kBins, 5);
        add_to_histogram(input.span(), inverse_scale, actual);
        count(input.span(), inverse_scale, expected);
        EXPECT_EQ(actual, expected);
      }
    });
  }
}

TEST_P(StatisticsTest, HistogramPutsAnEdgeIntoTheUpperBin) {
  std::vector<float> values;
  for (int bin = 0; bin < SignedHistogram::kBins; ++bin) {
    const float lower = static_cast<float>(histogram_lower_edge(bin));
    EXPECT_EQ(lower, edge(static_cast<std::size_t>(bin)));
    EXPECT_EQ(bin_of(lower), bin);
    EXPECT_EQ(bin_of(static_cast<float>(histogram_centre(bin))), bin);
    for (const float x : {lower, std::nextafter(lower, 0.0F)}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  Counts actual(2 * kBins), expected(2 * kBins);
  add_to_histogram(values, 1.0F, actual);
  count(values, 1.0F, expected);
  EXPECT_EQ(actual, expected);
}

TEST(HistogramTest, CentreIsMidwayBetweenEdges) {
  for (int bin = 0; bin + 1 < SignedHistogram::kBins; ++bin) {
    EXPECT_DOUBLE_EQ(histogram_centre(bin), (histogram_lower_edge(bin) + histogram_lower_edge(bin + 1)) / 2);
  }
}

}  // namespace
}  // namespace thinwire::kernels
