// What averaging a bucket costs a worker, by doing it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "thinwire/link.h"
#include "thinwire/step_time.h"
#include "tool/samples.h"

namespace thinwire::tool {

struct BucketTrial {
  std::string compressor;
  int workers = 2;
  int per_host = 1;  // of them; on two levels if that is more
  int threads = 1;  // of each worker, that encode and decode
  Link link;        // that compressors choose by
};

struct BucketCosts {
  std::vector<BucketCost> buckets;    // worker 0's, ready_seconds left open; the fastest of some steps
  std::optional<double> nmse_worker;  // of its first encoding, as in TrialFigures
};

// Workers of this process average something like gradients, in steps of which the first, which learns and touches memory, does not count.
// They compute in turns, so that each has its threads' cores to itself; what other programs take of these, the fastest step shows least.
// Throws ArgumentError.
BucketCosts measure_buckets(const Buckets& buckets, const BucketTrial& trial);

}  // namespace thinwire::tool
