// Levels that are fitted to values (levels.h, LevelFit).
#pragma once

#include <cstddef>
#include <span>

namespace thinwire {

inline constexpr int kMostFittedBits = 6;

// MUCSC's centroids: of the least variance that moving them one by one finds, if values are rounded to their neighbours at random.
std::size_t fit_mucsc(std::span<const float> values, std::span<float> levels);

}  // namespace thinwire
