#pragma once

#include <concepts>

namespace thinwire {

// How many parts of b it takes to hold a.
template <std::unsigned_integral T>
constexpr T divided_up(T a, T b) {
  return (a + b - 1) / b;
}

}  // namespace thinwire
