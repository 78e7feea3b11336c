// The collectives an exchange may ask for, as plain data: what a communicator has to perform.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire {

enum class ElementType : std::uint8_t { kFloat32, kBfloat16, kFloat16, kInt32, kUint32, kUint8 };

constexpr std::size_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kBfloat16:
    case ElementType::kFloat16:
      return 2;
    case ElementType::kUint8:
      return 1;
    default:
      return 4;
  }
}

enum class CollectiveKind : std::uint8_t {
  kSum,        // data: element-wise sum over all workers, in place
  kMax,        // data: element-wise maximum, in place; a NaN of any worker wins
  kUnite,      // data: bit-wise OR of words (kUint32), in place
  kGather,     // data: this worker's bytes; result: every worker's, in rank order, all of one length
  kScatter,    // data: one shard for each worker, all of one length; result: the shards for this worker, in rank order
  kBroadcast,  // data: the root's bytes on every worker, in place
};

// Who takes part. Where hosts are told apart a collective may be of a part of the workers, and other parts perform theirs at the same time.
enum class Group : std::uint8_t { kAll, kWithinHost, kBetweenHosts };
inline constexpr std::size_t kGroups = 3;

// What the bytes are for; the driver counts them apart.
enum class Purpose : std::uint8_t {
  kSetup,    // training of clusters, bases
  kPayload,  // a gradient's first encoding
  kSecond,   // a second encoding, of a shard's mean
};

struct Collective {
  CollectiveKind kind = CollectiveKind::kSum;
  ElementType type = ElementType::kUint8;
  Purpose purpose = Purpose::kPayload;
  Group group = Group::kAll;         // whose members ranks, roots and numbers of workers count, in rank order
  int root = 0;                      // kBroadcast only
  std::span<std::byte> data = {};    // aligned to its element type
  std::span<std::byte> result = {};  // kGather: world size times data.size(); kScatter: data.size(); else empty
};

// For people: "sum", "gather"; "float32", and "bytes" for kUint8; "all", "host", "between".
const char* name_of(CollectiveKind kind);
const char* name_of(ElementType type);
const char* name_of(Group group);

// Bytes a worker sends for `collective` by its standard algorithm: ring all-reduce, ring all-gather, direct all-to-all,
// and for a broadcast the tree's mean over the workers. 0 with one worker.
double traffic_bytes(const Collective& collective, int world_size);

}  // namespace thinwire
