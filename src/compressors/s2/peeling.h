// In which order keys can be read off a table in which each of them was added to three cells, one of each third of the table:
// a cell that holds one key alone gives it, which frees its other two cells, and so on. With at least 1.23 cells a key nearly
// all tables peel to the end (Botelho, Pagh, Ziviani, WADS 2007; Molloy, SODA 2004). Linear time.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/scratch.h"

namespace thinwire {

// Three hash functions; cells: a third of the table.
struct PeelingHashes {
  std::array<std::uint64_t, 3> seeds{};
  std::uint32_t cells = 0;

  struct Place {
    std::uint32_t cell;
    float sign;
  };
  Place place(std::uint32_t key, std::size_t third) const;
};

class Peeling {
 public:
  Peeling(std::span<const std::uint32_t> keys, const PeelingHashes& hashes, Scratch& scratch);

  // A key, by its index, and the third in which its cell holds nothing else once all before it have been taken out.
  struct Step {
    std::uint32_t key;
    std::uint32_t third;
  };
  std::span<const Step> order() const { return order_; }
  // Indices of the keys that cannot be read off, ascending.
  std::span<const std::uint32_t> left() const { return left_; }
  // How many of those that are left are in a cell.
  std::uint32_t left_in(std::uint32_t cell) const { return counts_[cell]; }

 private:
  std::span<Step> order_;
  std::span<std::uint32_t> left_;
  std::span<std::uint32_t> counts_;
};

}  // namespace thinwire
