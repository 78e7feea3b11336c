#include "thinwire/pipelining.h"

#include <algorithm>

namespace thinwire {
namespace {

constexpr double kTolerance = 1.04;
// A worker that is interrupted keeps the others of its collective waiting, of which the model knows nothing; further lanes go on
// meanwhile.
constexpr int kSlack = 2;

}  // namespace

// Lanes take turns at two stations, codec and wire, and wait a while by themselves: a closed queueing network, solved by mean
// value analysis (Reiser and Lavenberg, J. ACM 27, 1980). It takes times to vary as much as they do on busy machines; with
// times that never vary, fewer lanes would do.
double pipelined_seconds(const ReductionCost& cost, int buckets, int lanes) {
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

int choose_lanes(const ReductionCost& cost, int buckets, int most) {
  const int useful = std::min(most, buckets);
  double least = pipelined_seconds(cost, buckets, 1);
  for (int lanes = 2; lanes <= useful; ++lanes) least = std::min(least, pipelined_seconds(cost, buckets, lanes));
  int serve = 1;
  while (pipelined_seconds(cost, buckets, serve) > kTolerance * least) ++serve;
  return serve == 1 ? 1 : std::min(kSlack * serve, useful);
}

}  // namespace thinwire
