#include "compressors/casq/clusters.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compressors/casq/value_density.h"

namespace thinwire {
namespace {

struct Point {
  double value;
  double weight;
};

// Every bin's values at its centre.
std::vector<Point> centres(const ValueDensity& density) {
  std::vector<Point> points;
  for (const ValueDensity::Bin& bin : density.bins()) points.push_back({0.5 * (bin.low + bin.high), bin.weight});
  return points;
}

// The best division of the first so many points into k clusters, for every k up to a largest.
class IntervalClusters {
 public:
  IntervalClusters(std::vector<Point> points, int largest_k) : points_(std::move(points)) {
    sum_prefixes();
    const std::size_t size = points_.size() + 1;
    error_.assign(static_cast<std::size_t>(largest_k) + 1, std::vector<double>(size, kInfinite));
    start_.assign(error_.size(), std::vector<std::size_t>(size, 0));
    error_[0][0] = 0;
    for (std::size_t k = 1; k < error_.size(); ++k) {
      error_[k][0] = 0;
      if (!points_.empty()) solve(k, 1, points_.size(), 0, points_.size() - 1);
    }
  }

  double error(int k) const { return error_[static_cast<std::size_t>(k)].back(); }

  // k - 1 ascending values between the clusters: midway between neighbours' means, as Lloyd's condition wants.
  std::vector<double> boundaries(int k) const {
    std::vector<double> boundaries;
    std::size_t end = points_.size();
    for (auto cluster = static_cast<std::size_t>(k); cluster > 1; --cluster) {
      const std::size_t begin = start_[cluster][end];
      const std::size_t before = start_[cluster - 1][begin];
      boundaries.push_back(between(before, begin, end));
      end = begin;
    }
    std::reverse(boundaries.begin(), boundaries.end());
    return boundaries;
  }

 private:
  static constexpr double kInfinite = std::numeric_limits<double>::infinity();

  void sum_prefixes() {
    weight_.assign(1, 0);
    first_.assign(1, 0);
    second_.assign(1, 0);
    for (const Point& point : points_) {
      weight_.push_back(weight_.back() + point.weight);
      first_.push_back(first_.back() + point.weight * point.value);
      second_.push_back(second_.back() + point.weight * point.value * point.value);
    }
  }

  double mean(std::size_t begin, std::size_t end) const {
    return (first_[end] - first_[begin]) / (weight_[end] - weight_[begin]);
  }

  // Sum of squared distances from the mean of the points [begin, end).
  double spread(std::size_t begin, std::size_t end) const {
    if (begin + 1 >= end) return 0;
    const double sum = first_[end] - first_[begin];
    return std::max(0.0, second_[end] - second_[begin] - sum * sum / (weight_[end] - weight_[begin]));
  }

  // Fills error_[k] for the ends [low, high], whose last cluster starts within [start_low, start_high]: starts never go
  // back as the end advances.
  void solve(std::size_t k, std::size_t low, std::size_t high, std::size_t start_low, std::size_t start_high) {
    if (low > high) return;
    const std::size_t end = low + (high - low) / 2;
    double best = kInfinite;
    std::size_t best_start = std::min(start_low, end - 1);
    for (std::size_t start = start_low; start <= std::min(start_high, end - 1); ++start) {
      const double error = error_[k - 1][start] + spread(start, end);
      if (error < best) {
        best = error;
        best_start = start;
      }
    }
    error_[k][end] = best;
    start_[k][end] = best_start;
    solve(k, low, end - 1, start_low, best_start);
    solve(k, end + 1, high, best_start, start_high);
  }

  // The boundary between the clusters [before, begin) and [begin, end). An empty one is left without values: it lies
  // beyond the point next to it, and both may be empty, at either end of all points.
  double between(std::size_t before, std::size_t begin, std::size_t end) const {
    if (points_.empty()) return 0;
    if (begin == end && begin > 0) return points_[begin - 1].value;
    if (before == begin) return points_[begin].value - std::abs(points_[begin].value);
    return 0.5 * (mean(before, begin) + mean(begin, end));
  }

  std::vector<Point> points_;
  std::vector<double> weight_, first_, second_;     // prefix sums
  std::vector<std::vector<double>> error_;          // [k][end]
  std::vector<std::vector<std::size_t>> start_;     // [k][end]: where the last cluster starts
};

// How many clusters the negative side gets: the least total error, and the most even division among equals.
int negative_clusters(const IntervalClusters& negative, const IntervalClusters& positive, int clusters) {
  int best = clusters / 2;
  for (int count = 1; count < clusters; ++count)
    if (negative.error(count) + positive.error(clusters - count) < negative.error(best) + positive.error(clusters - best))
      best = count;
  return best;
}

constexpr int kFewClusters = 16;

std::vector<double> boundaries_of(const ValueDensity& density, int clusters) {
  if (clusters > kFewClusters) return density.many_boundaries(clusters);
  return IntervalClusters(centres(density), clusters).boundaries(clusters);
}

int negative_clusters(const ValueDensity& negative, const ValueDensity& positive, int clusters) {
  if (clusters <= kFewClusters)
    return negative_clusters(IntervalClusters(centres(negative), clusters - 1), IntervalClusters(centres(positive), clusters - 1),
                             clusters);
  const double below = negative.cube_root_mass(), above = positive.cube_root_mass();
  if (!(below + above > 0)) return clusters / 2;
  return std::clamp(static_cast<int>(std::lround(clusters * below / (below + above))), 1, clusters - 1);
}

std::vector<float> ascending(const std::vector<double>& thresholds) {
  std::vector<float> rounded(thresholds.begin(), thresholds.end());
  std::sort(rounded.begin(), rounded.end());  // where clusters are empty
  return rounded;
}

// Where the largest positive values begin: a share `tail` of them, none if there are none.
double tail_begin(const ValueDensity& positive, double tail) { return positive.empty() ? 0 : positive.quantile(1 - tail); }

// Between the tail, whose centre is where it begins, and the cluster below it.
double tail_threshold(const ValueDensity& rest, const std::vector<double>& boundaries, double begin) {
  if (rest.empty()) return begin;
  const double low = boundaries.empty() ? rest.bins().front().low : boundaries.back();
  return 0.5 * (rest.mean(std::min(low, begin), begin) + begin);
}

}  // namespace

std::vector<float> optimal_thresholds(std::span<const std::int32_t> counts, int clusters, Signs signs) {
  const ValueDensity all = ValueDensity::of_histogram(counts);
  if (signs == Signs::kFree) return ascending(boundaries_of(all, clusters));
  const ValueDensity negative = all.below(0), positive = all.above(0);
  const int negatives = negative_clusters(negative, positive, clusters);
  std::vector<double> thresholds = boundaries_of(negative, negatives);
  thresholds.push_back(0);
  for (const double boundary : boundaries_of(positive, clusters - negatives)) thresholds.push_back(boundary);
  return ascending(thresholds);
}

std::vector<float> thresholds_with_tails(std::span<const std::int32_t> counts, int clusters, Signs signs, double tail) {
  if (clusters == 2) return optimal_thresholds(counts, clusters, signs);
  const ValueDensity all = ValueDensity::of_histogram(counts);
  const double above = tail_begin(all.above(0), tail), below = tail_begin(all.mirrored().above(0), tail);
  std::vector<double> thresholds;
  const auto add_side = [&](const ValueDensity& positive, double begin, double sign) {
    const ValueDensity rest = positive.below(begin);
    std::vector<double> boundaries = boundaries_of(rest, clusters / 2 - 1);
    boundaries.push_back(tail_threshold(rest, boundaries, begin));
    for (const double boundary : boundaries) thresholds.push_back(sign * boundary);
  };
  if (signs == Signs::kApart) {
    add_side(all.above(0), above, 1);
    add_side(all.mirrored().above(0), below, -1);
    thresholds.push_back(0);
  } else {
    const ValueDensity rest = all.below(above).above(-below);
    thresholds = boundaries_of(rest, clusters - 2);
    const double upper = tail_threshold(rest, thresholds, above);
    std::vector<double> turned;
    for (auto boundary = thresholds.rbegin(); boundary != thresholds.rend(); ++boundary) turned.push_back(-*boundary);
    const double lower = -tail_threshold(rest.mirrored(), turned, below);
    thresholds.push_back(upper);
    thresholds.push_back(lower);
  }
  return ascending(thresholds);
}

double relative_error(std::span<const std::int32_t> counts, std::span<const float> thresholds) {
  const ValueDensity density = ValueDensity::of_histogram(counts);
  return density.energy() > 0 ? density.error(thresholds) / density.energy() : 0;
}

}  // namespace thinwire
