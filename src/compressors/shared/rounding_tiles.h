// What decides how a piece's values are rounded at random, so many at a time that it stays in the nearest cache.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/random.h"
#include "kernels/rounding.h"

namespace thinwire {

inline constexpr std::size_t kRoundingTile = 1024;  // a multiple of what codes are packed in

// body(first, words): for the values from `first` on, a word each (kernels::rounding_words()).
template <class Body>
void for_each_rounding_tile(std::size_t elements, const RandomSequence& random, const Body& body) {
  std::array<std::uint32_t, kRoundingTile> room;
  for (std::size_t first = 0; first < elements; first += kRoundingTile) {
    const auto words = std::span(room).first(std::min(kRoundingTile, elements - first));
    kernels::rounding_words(random.counter, random.key, first, words);
    body(first, std::span<const std::uint32_t>(words));
  }
}

}  // namespace thinwire
