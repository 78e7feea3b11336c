// Gradients of an embedding, most of whose rows are zero.
#pragma once

#include <algorithm>
#include <random>

#include "reducer/workers.h"

namespace thinwire::testing {

inline constexpr std::size_t kRows = 400, kRow = 48;

inline Layout embedding() { return Layout({{"embedding", {kRows, kRow}}}); }

// Every worker uses each row with this probability.
inline Gradients normal_rows(int workers, double density, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::bernoulli_distribution present(density);
  Gradients gradients(static_cast<std::size_t>(workers), std::vector<float>(kRows * kRow));
  for (auto& gradient : gradients)
    for (std::size_t r = 0; r < kRows; ++r)
      if (present(random))
        for (std::size_t i = 0; i < kRow; ++i) gradient[r * kRow + i] = normal(random);
  return gradients;
}

inline std::size_t union_rows(const Gradients& gradients) {
  std::size_t rows = 0;
  for (std::size_t r = 0; r < kRows; ++r)
    rows += std::any_of(gradients.begin(), gradients.end(), [&](const auto& gradient) { return gradient[r * kRow] != 0; }) ? 1 : 0;
  return rows;
}

}  // namespace thinwire::testing
