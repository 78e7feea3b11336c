#include "thinwire/pipelining.h"

#include <algorithm>
#include <vector>

namespace thinwire {
namespace {

constexpr double kTolerance = 1.04;
// A worker that is interrupted keeps the others of its collective waiting, of which the model knows nothing; further lanes go on
// meanwhile.
constexpr int kSlack = 2;

// Lanes take turns at two stations, codec and wire, and wait a while by themselves: a closed queueing network, solved by mean
// value analysis (Reiser and Lavenberg, J. ACM 27, 1980). It takes times to vary as much as they do on busy machines; with
// times that never vary, fewer lanes would do.
double seconds_of(const ReductionCost& cost, int buckets, int lanes) {
  const double codec = cost.codec_seconds / buckets + cost.bucket_codec_seconds, wire = cost.wire_seconds / buckets;
  const int used = std::min(lanes, buckets);
  double at_codec = 0, at_wire = 0, round = 0;  // lanes that a further one finds there, and how long it takes for one bucket
  for (int lane = 1; lane <= used; ++lane) {
    const double in_codec = codec * (1 + at_codec), in_wire = wire * (1 + at_wire);
    const double whole = in_codec + in_wire + cost.bucket_wait_seconds;
    if (!(whole > 0)) return 0;
    at_codec = lane * in_codec / whole;
    at_wire = lane * in_wire / whole;
    round = whole / lane;
  }
  if (used == 1) return buckets * round;
  // All lanes begin with their codecs, which share the cores: none reaches the wire much before the others.
  return buckets * round + used * std::min(codec, wire);
}

}  // namespace

Pipelining choose_pipelining(const ReductionCost& cost, std::span<const int> buckets, std::span<const int> lanes) {
  std::vector<Pipelining> best_of_lanes;
  for (const int l : lanes) {
    Pipelining& best = best_of_lanes.emplace_back(Pipelining{buckets[0], l, seconds_of(cost, buckets[0], l)});
    for (const int b : buckets.subspan(1))
      if (const double seconds = seconds_of(cost, b, l); seconds < best.seconds) best = {b, l, seconds};
  }
  const double least = std::ranges::min_element(best_of_lanes, {}, &Pipelining::seconds)->seconds;
  const auto serves = std::ranges::find_if(best_of_lanes, [&](const Pipelining& each) { return each.seconds <= kTolerance * least; });
  if (serves->lanes == 1) return *serves;
  const int wanted = kSlack * serves->lanes;
  const auto enough = std::ranges::find_if(best_of_lanes, [&](const Pipelining& each) { return each.lanes >= wanted; });
  return enough == best_of_lanes.end() ? best_of_lanes.back() : *enough;
}

}  // namespace thinwire
