#include "compressors/casq/casq_buckets.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "compressors/casq/casq_chunk.h"

namespace thinwire {
namespace {

// On the stack: buckets are allocated anew for every chunk, by many threads, and nothing is to wait for the heap.
template <class T>
struct ForClusters {
  std::array<T, CasqChunk::kMostClusters> room{};
  std::span<T> first(std::size_t clusters) { return std::span(room).first(clusters); }
};

// order <- the clusters by falling `key`, equal ones by their number.
template <class Key>
void sort_falling(std::span<std::uint16_t> order, const Key& key) {
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) != key(b) ? key(a) > key(b) : a < b; });
}

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

// counts <- whole numbers of at least `least` near the shares, which together make `entries`.
void in_whole_numbers(std::span<const double> shares, std::size_t entries, std::size_t least, std::span<std::uint16_t> counts) {
  std::size_t given = 0;
  for (std::size_t c = 0; c < shares.size(); ++c) {
    counts[c] = static_cast<std::uint16_t>(std::clamp(std::floor(shares[c]), static_cast<double>(least), static_cast<double>(entries)));
    given += counts[c];
  }
  ForClusters<std::uint16_t> room;
  const auto order = room.first(shares.size());
  sort_falling(order, [&](std::size_t c) { return shares[c] - std::floor(shares[c]); });
  for (std::size_t i = 0; given < entries; i = (i + 1) % order.size(), ++given) ++counts[order[i]];
  for (; given > entries; --given) --*std::max_element(counts.begin(), counts.end());
}

// shares <- shares of `entries` in proportion to weights, but `least` at least.
void set_proportional(std::span<const double> weights, std::size_t entries, double least, std::span<double> shares) {
  std::ranges::fill(shares, least);
  ForClusters<bool> room;
  const auto fixed = room.first(weights.size());
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

void allocate_as_published(std::span<const ClusterStatistics> clusters, std::size_t entries, Allocation allocation,
                           std::span<std::uint16_t> counts) {
  constexpr std::size_t kLeast = 10;
  std::array<double, 2> of_sign{};
  for (const ClusterStatistics& cluster : clusters) of_sign[cluster.centre < 0 ? 0 : 1] += cluster.entries;
  ForClusters<double> room_for_weights, room_for_shares;
  const auto weights = room_for_weights.first(clusters.size()), shares = room_for_shares.first(clusters.size());
  std::ranges::transform(clusters, weights.begin(), [&](const ClusterStatistics& cluster) {
    return weight_of(cluster, allocation, of_sign[cluster.centre < 0 ? 0 : 1]);
  });
  const std::size_t least = std::min(kLeast, entries / clusters.size());
  set_proportional(weights, entries, static_cast<double>(least), shares);
  in_whole_numbers(shares, entries, least, counts);
}

void fill_largest_variance(std::span<const ClusterStatistics> clusters, std::size_t entries, std::span<std::uint16_t> counts) {
  ForClusters<std::uint16_t> room;
  const auto order = room.first(clusters.size());
  sort_falling(order, [&](std::size_t c) { return clusters[c].variance; });
  std::size_t left = entries - clusters.size();
  for (const std::size_t c : order) {
    const auto wanted = static_cast<std::size_t>(std::max(0.0, clusters[c].entries - 1));
    const std::size_t given = std::min(wanted, left);
    counts[c] = static_cast<std::uint16_t>(1 + given);
    left -= given;
  }
  counts[order.front()] = static_cast<std::uint16_t>(counts[order.front()] + left);
}

void give_equal_worth(std::span<const ClusterStatistics> clusters, std::size_t entries, std::span<std::uint16_t> counts) {
  double largest = 0;
  for (const ClusterStatistics& cluster : clusters) largest = std::max(largest, cluster.variance);
  ForClusters<double> room;
  const auto shares = room.first(clusters.size());
  std::ranges::fill(shares, 1);
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
  in_whole_numbers(shares, entries, 1, counts);
}

}  // namespace

double expected_error(const ClusterStatistics& cluster, double buckets, BucketAssignment assign) {
  if (cluster.entries == 0) return 0;
  if (assign == BucketAssignment::kRank) return cluster.variance * (cluster.entries - std::min(buckets, cluster.entries));
  return cluster.variance * (cluster.entries - buckets * (1 - std::exp(-cluster.entries / buckets)));
}

void allocate_buckets(std::span<const ClusterStatistics> clusters, std::size_t entries, Allocation allocation,
                      BucketAssignment assign, std::span<std::uint16_t> counts) {
  if (allocation != Allocation::kOptimal) return allocate_as_published(clusters, entries, allocation, counts);
  if (assign == BucketAssignment::kRank) return fill_largest_variance(clusters, entries, counts);
  give_equal_worth(clusters, entries, counts);
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
