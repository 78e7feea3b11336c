// How data is divided among workers that share the work of combining it.
#pragma once

#include <algorithm>
#include <cstddef>

namespace thinwire {

struct Part {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Worker `rank` of `workers`' part of `bytes`, in whole cache lines so that workers do not write to a common one.
inline Part part_of(std::size_t bytes, std::size_t rank, std::size_t workers) {
  constexpr std::size_t kLine = 64;
  const std::size_t lines = (bytes + kLine - 1) / kLine;
  const std::size_t share = lines / workers;
  const std::size_t longer = lines % workers;  // the first so many parts have a line more
  const std::size_t first = rank * share + std::min(rank, longer);
  const std::size_t count = share + (rank < longer ? 1 : 0);
  return {std::min(bytes, first * kLine), std::min(bytes, (first + count) * kLine)};
}

}  // namespace thinwire
