// How many buckets to have on their way at once, so that codec and wire work at the same time.
#pragma once

namespace thinwire {

// What it takes a worker to reduce a gradient, bucket after bucket in one lane.
struct ReductionCost {
  double codec_seconds = 0;         // encoding and decoding all of it
  double wire_seconds = 0;          // all its bytes' way
  double bucket_codec_seconds = 0;  // what every bucket adds, however small: computing,
  double bucket_wait_seconds = 0;   // and waiting, in which other lanes may work
};

// Seconds that a reduction should take, cut into so many buckets, in so many lanes. Pre: both at least 1.
double pipelined_seconds(const ReductionCost& cost, int buckets, int lanes);

// One lane if that comes within 4 % of the best number up to `most`, else twice as many as the fewest that do: workers that are
// interrupted keep others waiting. Never more than there are buckets, nor than `most`. The same on every worker if the arguments
// are. Pre: both at least 1.
int choose_lanes(const ReductionCost& cost, int buckets, int most);

}  // namespace thinwire
