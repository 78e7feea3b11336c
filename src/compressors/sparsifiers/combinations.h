// The number of a combination among all: which `taken` of `all` are taken, in as few bits as any code can do that takes the same for each.
//
// Source: Cover: "Enumerative source coding", IEEE Trans. Information Theory 19, 1973. Symbols: c_1 < c_2 < ... are what is taken, counted
// from 0, and their number is the sum of the binomials (c_j choose j). The binomials are a table of 0.7 MB, made once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire {

class Combinations {
 public:
  static constexpr std::size_t kMostAll = 319, kMostTaken = 64;
  static constexpr int kWords = 4;
  using Number = std::array<std::uint64_t, kWords>;  // the lowest word first

  // Pre: taken <= all <= kMostAll, taken <= kMostTaken.
  Combinations(std::size_t taken, std::size_t all);

  // What numbers from 1 to that of all combinations take: 0 is left for something else.
  unsigned bits() const;
  // 1 at least. Pre: combination ascends below `all`, and has `taken` of them.
  Number number_of(std::span<const std::uint16_t> combination) const;
  // False if there is none of that number. Pre: combination has room for `taken`.
  bool find(Number number, std::span<std::uint16_t> combination) const;

 private:
  std::size_t taken_, all_;
};

}  // namespace thinwire
