// Spans that are as hard on kernels as gradients can be: of every length about a group of 16, aligned and not, at the
// very end of their heap block so that the address sanitizer sees what is beyond.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/codes.h"

namespace thinwire::kernels {

inline const std::vector<std::size_t> kSizes = {0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 255, 4097, 100003};

// A vector whose elements begin `offset` elements into its heap block and end where the block ends.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t size, std::size_t offset = 0) : block_(size + offset, kGuard), offset_(offset) {}
  explicit Buffer(const std::vector<T>& elements, std::size_t offset = 0) : Buffer(elements.size(), offset) {
    std::copy(elements.begin(), elements.end(), block_.begin() + static_cast<std::ptrdiff_t>(offset));
  }

  std::span<T> span() { return std::span(block_).subspan(offset_); }
  std::span<const T> span() const { return std::span(block_).subspan(offset_); }
  std::vector<T> elements() const { return {span().begin(), span().end()}; }
  // Whether what lies before the elements is as it was.
  bool untouched_before() const {
    return std::all_of(block_.begin(), block_.begin() + static_cast<std::ptrdiff_t>(offset_),
                       [](T element) { return element == kGuard; });
  }

 private:
  static constexpr T kGuard{99};
  std::vector<T> block_;
  std::size_t offset_;
};

inline std::vector<float> normal_values(std::size_t n, std::uint32_t seed = 1, float deviation = 1.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// The magnitudes of such floats by their definition, 0 among them.
inline std::vector<double> magnitudes_of(const FewBitFloats& floats) {
  std::vector<double> all;
  const int steps = 1 << floats.mantissa_bits;
  for (int number = 0; number <= floats.count; ++number) {
    const int octave = number < steps ? 0 : number / steps - 1;
    all.push_back(std::ldexp(number < steps ? number : steps + number % steps, floats.least_exponent - floats.mantissa_bits + octave));
  }
  return all;
}

struct Content {
  std::string name;
  std::vector<float> values;
};

inline Content with_one(std::string name, std::size_t n, float one) {
  Content content{std::move(name), normal_values(n)};
  if (n > 0) content.values[n / 2] = one;
  return content;
}

inline std::vector<Content> finite_contents(std::size_t n) {
  std::vector<float> denormals = normal_values(n, 2, 1e-39F);
  return {{"normal", normal_values(n)},
          {"zero", std::vector<float>(n, 0.0F)},
          {"negative zero", std::vector<float>(n, -0.0F)},
          {"constant", std::vector<float>(n, -0.3F)},
          with_one("outlier", n, 1e38F),
          {"denormal", std::move(denormals)}};
}

inline std::vector<Content> non_finite_contents(std::size_t n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<Content> contents = {with_one("NaN", n, std::numeric_limits<float>::quiet_NaN()),
                                   with_one("infinity", n, kInfinity), with_one("-infinity", n, -kInfinity)};
  contents.push_back(with_one("NaN at the end", n, 0.0F));
  if (n > 0) contents.back().values.back() = -std::numeric_limits<float>::quiet_NaN();
  return contents;
}

}  // namespace thinwire::kernels
