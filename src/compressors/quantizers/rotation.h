// A chunk rotated at random, H D x: D changes signs at random, H is Walsh and Hadamard's matrix. A chunk's blocks are powers of two, the
// longest first; the last entries, where they are fewer than 64, are filled up with zeros.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire {

inline constexpr std::size_t kLeastBlock = 64;

// Entries of the first block of what is left.
inline std::size_t block_at(std::size_t left) { return std::max(std::bit_floor(left), kLeastBlock); }

// visit(first, entries, its number): the last one may be longer than what is left.
template <class Visit>
void for_each_block(std::size_t elements, const Visit& visit) {
  std::size_t number = 0;
  for (std::size_t first = 0; first < elements; ++number) {
    const std::size_t length = block_at(elements - first);
    visit(first, length, number);
    first += length;
  }
}

struct Blocks {
  std::size_t count = 0, entries = 0;
};
Blocks blocks_of(std::size_t elements);

// The part of a chunk's values that belongs to a block.
template <class T>
std::span<T> part_of_block(std::span<T> values, std::size_t first, std::size_t length) {
  return values.subspan(first, std::min(length, values.size() - first));
}
// block <- values, and zeros behind them.
void fill_block(std::span<const float> values, std::span<float> block);

// x <- D x, the part of the signs that belongs to the block that begins at `first`.
void change_signs(std::uint32_t seed, std::size_t first, std::span<float> block);

}  // namespace thinwire
