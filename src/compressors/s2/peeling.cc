#include "compressors/s2/peeling.h"

#include <algorithm>

#include "kernels/hash.h"

namespace thinwire {

PeelingHashes::Place PeelingHashes::place(std::uint32_t key, std::size_t third) const {
  const std::uint64_t hashed = kernels::hash(seeds[third], key);
  return {static_cast<std::uint32_t>(third) * cells + kernels::bucket_of(hashed, cells), (hashed & 1) != 0 ? -1.0f : 1.0f};
}

Peeling::Peeling(std::span<const std::uint32_t> keys, const PeelingHashes& hashes, Scratch& scratch)
    : counts_(scratch.take<std::uint32_t>(3 * std::size_t{hashes.cells})) {
  // A cell's keys, by their indices, XORed: where there is one, it is its index.
  const auto indices = scratch.take<std::uint32_t>(counts_.size());
  // First in, first out: chains of keys that free each other stay short, and with them what subtractions round.
  const auto alone = scratch.take<std::uint32_t>(counts_.size() + 3 * keys.size());
  const auto order = scratch.take<Step>(keys.size());
  const auto taken = scratch.take<std::uint8_t>(keys.size());
  std::ranges::fill(counts_, 0u);
  std::ranges::fill(indices, 0u);
  std::ranges::fill(taken, std::uint8_t{0});
  for (std::uint32_t k = 0; k < keys.size(); ++k)
    for (std::size_t third = 0; third < 3; ++third) {
      const std::uint32_t cell = hashes.place(keys[k], third).cell;
      ++counts_[cell];
      indices[cell] ^= k;
    }
  std::size_t first = 0, last = 0, steps = 0;
  for (std::uint32_t cell = 0; cell < counts_.size(); ++cell)
    if (counts_[cell] == 1) alone[last++] = cell;
  while (first < last) {
    const std::uint32_t cell = alone[first++];
    if (counts_[cell] != 1) continue;
    const std::uint32_t k = indices[cell];
    order[steps++] = {k, cell / hashes.cells};
    taken[k] = 1;
    for (std::size_t third = 0; third < 3; ++third) {
      const std::uint32_t of_key = hashes.place(keys[k], third).cell;
      indices[of_key] ^= k;
      if (--counts_[of_key] == 1) alone[last++] = of_key;
    }
  }
  order_ = order.first(steps);
  left_ = scratch.take<std::uint32_t>(keys.size() - steps);
  std::size_t next = 0;
  for (std::uint32_t k = 0; k < keys.size(); ++k)
    if (taken[k] == 0) left_[next++] = k;
}

}  // namespace thinwire
