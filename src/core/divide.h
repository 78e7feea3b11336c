#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>

namespace thinwire {

// How many parts of b it takes to hold a.
template <std::unsigned_integral T>
constexpr T divided_up(T a, T b) {
  return (a + b - 1) / b;
}

// The number-th part of `size`, of which the last one may have fewer.
template <class T>
std::span<T> part_of(std::span<T> all, std::size_t size, std::size_t number) {
  return all.subspan(number * size, std::min(size, all.size() - number * size));
}

}  // namespace thinwire
