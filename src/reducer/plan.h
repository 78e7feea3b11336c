// How a bucket's parameters are cut into chunks of the fixed grid, and these gathered into messages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reducer/policy.h"
#include "thinwire/layout.h"

namespace thinwire {

// A chunk of the grid, of the bucket's entry-th parameter.
struct Chunk {
  std::uint32_t entry;
  std::uint64_t first;
  std::uint64_t elements;
  std::uint64_t number;  // in the grid of the whole layout
};

// Chunks that travel together by one compressor.
struct MessagePlan {
  const ChosenCompressor* chosen = nullptr;
  std::vector<Chunk> chunks;
  std::uint64_t elements = 0;
};

// The entries of one compressor that remembers something, which may have to be prepared together.
struct PreparedGroup {
  const ChosenCompressor* chosen = nullptr;
  std::vector<std::uint32_t> entries;
};

struct BucketPlan {
  std::vector<MessagePlan> messages;
  std::vector<PreparedGroup> groups;
};

// A message's length is limited so that scratch memory is; DDP's buckets of 25 MiB fit into one.
inline constexpr std::uint64_t kMessageElements = std::uint64_t{1} << 23;

// parameters: indices of a bucket's parameters in the layout. owners: of all of the layout's, or empty.
BucketPlan plan_bucket(const Layout& layout, const Policy& policy, std::span<const std::uint32_t> parameters,
                       std::span<const std::uint32_t> owners = {});

}  // namespace thinwire
