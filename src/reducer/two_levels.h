// A bucket's reduction between workers that share hosts, as an exchange:
//   1. within each host, gradients are added up, as they are, by the workers that own their parts;
//   2. the owners of a part average it over the hosts as one worker a host would: compressed, with its residual and memory;
//   3. within each host, owners give the means to all.
// The first and the third go by memory that the host's workers share, where they can (host_memory.h).
//
// What leaves a host, the codecs' work and residuals so are 1/L of what L workers have that exchange each for itself. Means of 16-bit
// gradients are rounded behind the second step, and what that loses is lost.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/exchange.h"
#include "core/host_groups.h"
#include "reducer/bucket_reduction.h"
#include "reducer/host_parts.h"

namespace thinwire {

struct TwoLevelReduction {
  const HostGroups& groups;
  const HostParts& parts;
  Lane& lane;              // gradients: this worker's part; whole: the bucket
  BucketReduction bucket;  // of this worker's part
  Membership between;
  bool host_memory;
};

Exchange reduce_on_two_levels(TwoLevelReduction reduction);

}  // namespace thinwire
