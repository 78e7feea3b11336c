// How finely to cut a gradient, so that codec and wire work at the same time.
#pragma once

#include <span>

namespace thinwire {

// What it takes a worker to reduce a gradient, bucket after bucket in one lane.
struct ReductionCost {
  double codec_seconds = 0;         // encoding and decoding all of it
  double wire_seconds = 0;          // all its bytes' way
  double bucket_codec_seconds = 0;  // what every bucket adds, however small: computing,
  double bucket_wait_seconds = 0;   // and waiting, in which other lanes may work
};

struct Pipelining {
  int buckets = 1;
  int lanes = 1;       // buckets on their way at once
  double seconds = 0;  // that a reduction should take
};

// One lane if that comes within 4 % of the best of all given, else twice as many as the fewest that do (or as many as there are):
// workers that are interrupted keep others waiting. With them the number of buckets that is best for them. The same on every
// worker if the arguments are. Pre: there are candidates, all at least 1, in rising order.
Pipelining choose_pipelining(const ReductionCost& cost, std::span<const int> buckets, std::span<const int> lanes);

}  // namespace thinwire
