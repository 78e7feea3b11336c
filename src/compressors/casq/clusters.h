// Optimal clusters of values on a line, for CASQ: exact one-dimensional k-means on a histogram.
//
// On a line k-means needs no random start: clusters are intervals, so dynamic programming finds the least possible
// error (Bruce 1965; the divide-and-conquer form needs O(k n log n)). No seed, no empty cluster that needs a rule, and the
// same thresholds on every worker that holds the same counts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace thinwire {

// Whether a cluster may hold values of both signs.
enum class Signs {
  kFree,   // the least error: most gradients want one cluster around zero
  kApart,  // as CASQ was published: no value changes its sign, whatever cluster it is in
};

// Counts by sign and magnitude, as kernels::add_to_histogram makes them (2 kBins). Returns clusters - 1 ascending
// thresholds on the signed line. kApart: one of them is 0, and how many clusters each sign gets (at least one) is part of
// what is optimised. Where there are fewer distinct values than clusters, thresholds coincide and some clusters stay empty.
// From 32 clusters on bins are too wide to be undivided: values are taken as evenly spread over their bins, and Lloyd's
// algorithm begins where clusters that are many are best.
std::vector<float> optimal_thresholds(std::span<const std::int32_t> counts, int clusters, Signs signs);

// As CASQ was published: the values of each sign that are beyond all but a share `tail` of its magnitudes form a cluster
// whose centre is where they begin; the rest is divided as above, with kApart into half of the clusters for each sign. A
// value belongs to the nearest centre. With 2 clusters there is none to spare for tails.
std::vector<float> thresholds_with_tails(std::span<const std::int32_t> counts, int clusters, Signs signs, double tail);

// The share of the counted values' energy that clusters lose.
double relative_error(std::span<const std::int32_t> counts, std::span<const float> thresholds);

}  // namespace thinwire
