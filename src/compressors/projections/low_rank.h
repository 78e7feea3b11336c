// A parameter as a matrix, and whether matrices of low rank are shorter.
#pragma once

#include <algorithm>
#include <cstddef>

#include "thinwire/layout.h"

namespace thinwire {

struct LowRank {
  std::size_t m = 0, n = 0;  // rows and columns; none where a parameter is no matrix
  std::size_t r = 0;         // the rank; 0 where r (m + n) numbers are more than half of m n, so that it travels as it is

  LowRank(std::size_t rows, std::size_t columns, std::size_t rank) : m(rows), n(columns) {
    rank = std::min({rank, m, n});
    if (2 * rank * (m + n) < m * n) r = rank;
  }
  // Its first dimension by all its others.
  LowRank(const Parameter& parameter, std::size_t rank) {
    if (parameter.shape.size() < 2 || parameter.elements() == 0) return;
    const auto rows = static_cast<std::size_t>(parameter.shape[0]);
    *this = LowRank(rows, static_cast<std::size_t>(parameter.elements()) / rows, rank);
  }
};

}  // namespace thinwire
