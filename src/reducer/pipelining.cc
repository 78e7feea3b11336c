#include "thinwire/pipelining.h"

#include <algorithm>

namespace thinwire {
namespace {

constexpr double kTolerance = 1.04;

// Lanes take turns at two stations, codec and wire, and wait a while by themselves: a closed queueing network, solved by mean
// value analysis (Reiser and Lavenberg, J. ACM 27, 1980). It takes times to vary as much as they do on busy machines; with
// times that never vary, fewer lanes would do.
double seconds_of(const ReductionCost& cost, int buckets, int lanes) {
  const double codec = cost.codec_seconds / buckets + cost.bucket_codec_seconds, wire = cost.wire_seconds / buckets;
  double at_codec = 0, at_wire = 0, round = 0;  // lanes that a further one finds there, and how long it takes for one bucket
  for (int lane = 1; lane <= std::min(lanes, buckets); ++lane) {
    const double in_codec = codec * (1 + at_codec), in_wire = wire * (1 + at_wire);
    const double whole = in_codec + in_wire + cost.bucket_wait_seconds;
    if (!(whole > 0)) return 0;
    at_codec = lane * in_codec / whole;
    at_wire = lane * in_wire / whole;
    round = whole / lane;
  }
  // At the beginning the wire has nothing to do, or at the end the codec.
  return lanes > 1 && buckets > 1 ? buckets * round + std::min(codec, wire) : buckets * round;
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
