// What a block's magnitude stands for, and how one is chosen: level_planes.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>

#include "kernels/level_planes.h"

namespace thinwire::kernels {

// Levels from here on are sent as exact values.
constexpr std::uint32_t kLargestLevel = (1U << 22) - 1;

// Of 1/256 step: where the mean of a level's values lies, from the level.
inline constexpr int kOffsets[] = {-44, -23, -20, -14, -9, 0, 8, 14, 19, 22, 24, 25, 26};  // the last one for all above, too
constexpr float offset_of(unsigned magnitude) {
  return static_cast<float>(kOffsets[std::min<std::size_t>(magnitude, std::size(kOffsets) - 1)]) / 256;
}

// The decoded magnitude of a level that is not zero, in steps of `step`.
inline float decoded_magnitude(float level, float offset, float step) { return (level + offset) * step; }

// Sixteenths of a bit that a yes and a no cost in the unary planes of blocks of each magnitude, about.
inline constexpr int kYes[] = {99, 90, 73, 56, 40, 28, 19, 12, 13, 15, 16}, kNo[] = {1, 1, 1, 2, 4, 8, 13, 21, 19, 17, 16};
constexpr int yes_cost(unsigned magnitude) { return kYes[std::min<std::size_t>(magnitude, std::size(kYes) - 1)]; }
constexpr int no_cost(unsigned magnitude) { return kNo[std::min<std::size_t>(magnitude, std::size(kNo) - 1)]; }

// floor(log2(excess / count)) + 7, at least 1.
inline unsigned mean_magnitude(std::uint32_t excess, std::uint32_t count) {
  int exponent = static_cast<int>(std::bit_width(excess)) - static_cast<int>(std::bit_width(count));
  const bool below = exponent >= 0 ? excess < (count << exponent) : (excess << -exponent) < count;
  exponent -= below ? 1 : 0;
  return static_cast<unsigned>(std::max(exponent + kUnitMagnitude, 1));
}

// What levels that are not zero cost in a block of this magnitude.
template <class Level>
int cost_of(const Level* levels, unsigned magnitude) {
  const unsigned low_bits = low_bits_of(magnitude);
  int cost = 0;
  for (std::size_t i = 0; i < kLevelBlock; ++i) {
    const auto level = static_cast<unsigned>(std::abs(levels[i]));
    if (level == 0) continue;
    const unsigned high = (level - 1) >> low_bits;
    cost += static_cast<int>(16 * low_bits + std::min<unsigned>(high, kUnaryPlanes) * static_cast<unsigned>(yes_cost(magnitude)));
    if (high < kUnaryPlanes) cost += no_cost(magnitude);
    else cost += 16 * (high - kUnaryPlanes < kExactTail && level < kLargestLevel ? 8 : 40);
  }
  return cost;
}

// The block's magnitude. A few outliers beside small levels would make all of them dear: then it is that of least cost.
// has_above(least): whether some level is above `least`.
template <class Level, class HasAbove>
unsigned magnitude_of(const Level* levels, std::uint32_t count, std::uint32_t excess, const HasAbove& has_above) {
  if (excess == 0) return 0;
  unsigned best = mean_magnitude(excess, count);
  constexpr std::uint64_t kOutlier = 16;  // times the mean of q - 1
  if (best <= kUnitMagnitude || !has_above(static_cast<std::uint32_t>((kOutlier * excess + count - 1) / count))) return best;
  int least = cost_of(levels, best);
  for (unsigned magnitude = best - 1; magnitude >= 1; --magnitude) {
    const int cost = cost_of(levels, magnitude);
    if (cost < least) best = magnitude, least = cost;
  }
  return best;
}

}  // namespace thinwire::kernels
