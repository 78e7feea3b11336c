// What can be chosen of CASQ; the parameters of its spec.
#pragma once

#include <cstdint>

#include "compressors/casq/clusters.h"
#include "compressors/shared/reduce_coded.h"

namespace thinwire {

// Which bucket of its cluster an entry goes to.
enum class BucketAssignment : std::uint8_t {
  kRank,  // the j-th of the cluster's n entries to bucket floor(j m / n) of m: neighbours share, sequential in memory
  kHash,  // by a hash of the entry's number, as published
};

// How a chunk's buckets are divided among its clusters.
enum class Allocation : std::uint8_t {
  kOptimal,               // the least expected error, for either assignment
  kEntropy,               // as published, in proportion to the entropy of a cluster's values,
  kDensity,               // to its share of the entries of its sign,
  kEntropyCentre,         // to entropy times |centre|,
  kEntropyCentreDensity,  // or to all three
};

enum class Precision : std::uint8_t { kFloat32, kBfloat16 };

enum class Scope : std::uint8_t {
  kParameter,  // an entry is decoded to its cluster's mean
  kBlock,      // to its cluster's mean times its block's mean magnitude
};

struct CasqOptions {
  int bits = 2;                // an entry, 1 to 8: 2^bits clusters
  double budget = 0;           // if not 0, bits an entry over all parameters, which get clusters by what they bring
  std::uint64_t retrain = 100;  // steps between trainings of the clusters
  Signs signs = Signs::kFree;
  double tail = 0;   // if not 0, the share of each sign's values in a cluster of their own
  double table = 0;  // buckets an entry, beyond the first of each cluster
  BucketAssignment assign = BucketAssignment::kRank;
  Allocation allocate = Allocation::kOptimal;
  Precision precision = Precision::kFloat32;  // of what clusters and buckets decode to
  Scope scope = Scope::kParameter;
  Reduce reduce = Reduce::kGather;
};

}  // namespace thinwire
