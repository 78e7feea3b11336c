#include "thinwire/pipelining.h"

#include <algorithm>

namespace thinwire {
namespace {

constexpr double kTolerance = 1.02;

// Whichever is busiest, codec, wire or lanes, sets the pace; the first bucket's codec or the last one's wire is what nothing
// overlaps.
double seconds_of(const ReductionCost& cost, int buckets, int lanes) {
  const double codec = cost.codec_seconds + buckets * cost.bucket_codec_seconds;
  const double in_lanes = codec + cost.wire_seconds + buckets * cost.bucket_wait_seconds;
  const int used = std::min(lanes, buckets);
  if (used == 1) return in_lanes;
  const double pace = std::max({codec, cost.wire_seconds, in_lanes / used});
  const double alone = std::min(codec, cost.wire_seconds) / buckets + cost.bucket_wait_seconds;
  return std::min(pace + alone, in_lanes);
}

}  // namespace

Pipelining choose_pipelining(const ReductionCost& cost, std::span<const int> buckets, std::span<const int> lanes) {
  double best = seconds_of(cost, buckets[0], lanes[0]);
  for (const int l : lanes)
    for (const int b : buckets) best = std::min(best, seconds_of(cost, b, l));
  for (const int l : lanes)
    for (const int b : buckets)
      if (const double seconds = seconds_of(cost, b, l); seconds <= kTolerance * best) return {b, l, seconds};
  return {};  // not reached: the best is among them
}

}  // namespace thinwire
