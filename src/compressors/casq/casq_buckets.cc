#include "compressors/casq/casq_buckets.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace thinwire {
namespace {

// What a further bucket saves of a cluster hashed at this load, as a share of its variance.
double worth_at(double load) { return load < 1e-4 ? 0.5 * load * load : 1 - std::exp(-load) * (1 + load); }

// The load at which a further bucket is worth so much: between entries of a table, 16 an octave.
double load_worth(double worth) {
  constexpr int kSteps = 16 * 24;
  constexpr double kLeast = 1.0 / 1024;
  static const std::array<double, kSteps> worths = [] {
    std::array<double, kSteps> values{};
    for (int i = 0; i < kSteps; ++i) values[static_cast<std::size_t>(i)] = worth_at(kLeast * std::exp2(i / 16.0));
    return values;
  }();
  const auto above = std::upper_bound(worths.begin(), worths.end(), worth);
  if (above == worths.begin()) return kLeast;
  if (above == worths.end()) return kLeast * std::exp2(kSteps / 16.0);
  const double share = (worth - *(above - 1)) / (*above - *(above - 1));
  return kLeast * std::exp2((static_cast<double>(above - worths.begin()) - 1 + share) / 16);
}

// Whole numbers of at least `least` near the shares, which together make `entries`.
std::vector<std::uint16_t> in_whole_numbers(const std::vector<double>& shares, std::size_t entries, std::size_t least) {
  std::vector<std::uint16_t> counts(shares.size());
  std::size_t given = 0;
  for (std::size_t c = 0; c < shares.size(); ++c) {
    counts[c] = static_cast<std::uint16_t>(std::clamp(std::floor(shares[c]), static_cast<double>(least), static_cast<double>(entries)));
    given += counts[c];
  }
  std::vector<std::size_t> order(shares.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return shares[a] - std::floor(shares[a]) > shares[b] - std::floor(shares[b]);
  });
  for (std::size_t i = 0; given < entries; i = (i + 1) % order.size(), ++given) ++counts[order[i]];
  for (; given > entries; --given) --*std::max_element(counts.begin(), counts.end());
  return counts;
}

// Shares of `entries` in proportion to weights, but `least` at least.
std::vector<double> proportional(const std::vector<double>& weights, std::size_t entries, double least) {
  std::vector<double> shares(weights.size(), least);
  std::vector<bool> fixed(weights.size());
  for (bool again = true; again;) {
    again = false;
    double weight = 0, left = static_cast<double>(entries);
    for (std::size_t c = 0; c < weights.size(); ++c) (fixed[c] ? left : weight) += fixed[c] ? -least : weights[c];
    for (std::size_t c = 0; c < weights.size(); ++c) {
      if (fixed[c]) continue;
      shares[c] = weight > 0 ? left * weights[c] / weight : least;
      if (shares[c] >= least) continue;
      shares[c] = least;
      fixed[c] = again = true;
    }
  }
  return shares;
}

double weight_of(const ClusterStatistics& cluster, Allocation allocation, double entries_of_its_sign) {
  const double density = entries_of_its_sign > 0 ? cluster.entries / entries_of_its_sign : 0;
  switch (allocation) {
    case Allocation::kEntropy:
      return cluster.entropy;
    case Allocation::kDensity:
      return density;
    case Allocation::kEntropyCentre:
      return cluster.entropy * std::abs(cluster.centre);
    default:
      return cluster.entropy * std::abs(cluster.centre) * density;
  }
}

std::vector<std::uint16_t> published(std::span<const ClusterStatistics> clusters, std::size_t entries, Allocation allocation) {
  constexpr std::size_t kLeast = 10;
  std::array<double, 2> of_sign{};
  for (const ClusterStatistics& cluster : clusters) of_sign[cluster.centre < 0 ? 0 : 1] += cluster.entries;
  std::vector<double> weights;
  for (const ClusterStatistics& cluster : clusters)
    weights.push_back(weight_of(cluster, allocation, of_sign[cluster.centre < 0 ? 0 : 1]));
  const std::size_t least = std::min(kLeast, entries / clusters.size());
  return in_whole_numbers(proportional(weights, entries, static_cast<double>(least)), entries, least);
}

std::vector<std::uint16_t> fill_largest_variance(std::span<const ClusterStatistics> clusters, std::size_t entries) {
  std::vector<std::size_t> order(clusters.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return clusters[a].variance > clusters[b].variance; });
  std::vector<std::uint16_t> counts(clusters.size(), 1);
  std::size_t left = entries - clusters.size();
  for (const std::size_t c : order) {
    const auto wanted = static_cast<std::size_t>(std::max(0.0, clusters[c].entries - 1));
    const std::size_t given = std::min(wanted, left);
    counts[c] = static_cast<std::uint16_t>(1 + given);
    left -= given;
  }
  counts[order.front()] = static_cast<std::uint16_t>(counts[order.front()] + left);
  return counts;
}

std::vector<std::uint16_t> equal_worth(std::span<const ClusterStatistics> clusters, std::size_t entries) {
  double largest = 0;
  for (const ClusterStatistics& cluster : clusters) largest = std::max(largest, cluster.variance);
  std::vector<double> shares(clusters.size(), 1);
  const auto total_at = [&](double worth) {
    double total = 0;
    for (std::size_t c = 0; c < clusters.size(); ++c) {
      const bool worthwhile = clusters[c].variance > worth && clusters[c].entries > 1;
      shares[c] = worthwhile ? std::max(1.0, clusters[c].entries / load_worth(worth / clusters[c].variance)) : 1;
      total += shares[c];
    }
    return total;
  };
  double low = -60, high = 0;  // log2 of the worth, relative to the largest variance
  for (int i = 0; i < 40 && largest > 0; ++i) {
    const double middle = 0.5 * (low + high);
    (total_at(largest * std::exp2(middle)) > static_cast<double>(entries) ? low : high) = middle;
  }
  return in_whole_numbers(shares, entries, 1);
}

}  // namespace

double expected_error(const ClusterStatistics& cluster, double buckets, BucketAssignment assign) {
  if (cluster.entries == 0) return 0;
  if (assign == BucketAssignment::kRank) return cluster.variance * (cluster.entries - std::min(buckets, cluster.entries));
  return cluster.variance * (cluster.entries - buckets * (1 - std::exp(-cluster.entries / buckets)));
}

std::vector<std::uint16_t> allocate_buckets(std::span<const ClusterStatistics> clusters, std::size_t entries,
                                            Allocation allocation, BucketAssignment assign) {
  if (allocation != Allocation::kOptimal) return published(clusters, entries, allocation);
  return assign == BucketAssignment::kRank ? fill_largest_variance(clusters, entries) : equal_worth(clusters, entries);
}

BucketWalk::BucketWalk(std::span<const std::uint8_t> codes, std::span<const std::uint16_t> buckets, BucketAssignment assign)
    : hashed_(assign == BucketAssignment::kHash) {
  for (const std::uint8_t code : codes) ++clusters_[code].entries;
  std::uint32_t first = 0;
  for (std::size_t c = 0; c < buckets.size(); ++c) {
    clusters_[c].first = clusters_[c].next = first;
    clusters_[c].buckets = hashed_ ? buckets[c] : std::min<std::uint32_t>(buckets[c], clusters_[c].entries);
    first += buckets[c];
  }
}

}  // namespace thinwire
