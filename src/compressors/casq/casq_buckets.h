// CASQ's tables: how many buckets a cluster gets, which of them an entry goes to, and what that costs in error.
//
// A cluster of n entries with variance v that has m buckets loses, by expectation over what is in which bucket:
//   by rank  v (n - min(m, n)): each bucket's mean costs one degree of freedom, and every bucket has an entry;
//   by hash  v (n - m (1 - e^-l)), l = n / m: a bucket stays empty with probability e^-l.
// So for ranks each further bucket of a cluster is worth v until its entries are exact: the cluster of the largest v is
// filled first. For hashing a further bucket is worth v (1 - e^-l (1 + l)), which is made equal for all clusters.
#pragma once

#include <cstdint>
#include <span>

#include "compressors/casq/casq_options.h"

namespace thinwire {

struct ClusterStatistics {
  double entries = 0;   // n
  double variance = 0;  // v: mean squared distance from the centre
  double centre = 0;    // what the cluster decodes to without tables
  double entropy = 0;   // bits: of how its values are spread over a histogram's bins, 16 an octave
};

double expected_error(const ClusterStatistics& cluster, double buckets, BucketAssignment assign);

// counts <- each cluster's buckets: one at least, and all together `entries`. Published weights give each 10 at least, if there are so
// many. Pre: entries >= clusters.size(), and below 65,536; at most 256 clusters.
void allocate_buckets(std::span<const ClusterStatistics> clusters, std::size_t entries, Allocation allocation,
                      BucketAssignment assign, std::span<std::uint16_t> counts);

// 32 random-looking bits for the entry with this number in its chunk. No two entries have the same, which half of what
// kernels::mix() returns does not promise; and the format of messages depends on it.
constexpr std::uint32_t hash_of(std::uint32_t entry) {
  std::uint32_t x = entry * 0x9E3779B9u + 0x7F4A7C15u;
  x = (x ^ (x >> 16)) * 0x21F0AAADu;
  x = (x ^ (x >> 15)) * 0x735A2D97u;
  return x ^ (x >> 15);
}

// Walks over a chunk's entries in order and says in which entry of the table each is.
class BucketWalk {
 public:
  // codes: of all entries. buckets: of each cluster, at least 1.
  BucketWalk(std::span<const std::uint8_t> codes, std::span<const std::uint16_t> buckets, BucketAssignment assign);

  std::uint32_t next(std::uint8_t code) {
    Cluster& cluster = clusters_[code];
    const std::uint32_t entry = number_++;
    if (hashed_) return cluster.first + static_cast<std::uint32_t>(std::uint64_t{hash_of(entry)} * cluster.buckets >> 32);
    const std::uint32_t bucket = cluster.next;
    for (cluster.remainder += cluster.buckets; cluster.remainder >= cluster.entries; cluster.remainder -= cluster.entries)
      ++cluster.next;
    return bucket;
  }

 private:
  struct Cluster {
    std::uint32_t first = 0;    // its first entry of the table
    std::uint32_t buckets = 0;  // by rank no more than entries
    std::uint32_t entries = 0;
    std::uint32_t next = 0;       // floor(j m / n), and
    std::uint32_t remainder = 0;  // j m mod n
  };
  std::uint32_t number_ = 0;
  bool hashed_;
  Cluster clusters_[256];
};

}  // namespace thinwire
