// Memory of the caller's for what products and decompositions need beside their matrices.
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <type_traits>

namespace thinwire::kernels {

// Taken from the front. A copy begins where this one is, so what a function that is given one by value takes is given back at its
// end. What is taken is uninitialised, and aligned to 64 bytes if the memory is.
class MatrixRoom {
 public:
  explicit MatrixRoom(std::span<std::byte> memory) : rest_(memory) {}

  // Throws std::logic_error if there is not enough.
  template <class T>
  std::span<T> take(std::size_t count) {
    static_assert(std::is_arithmetic_v<T>);
    const std::size_t bytes = bytes_for<T>(count);
    if (bytes > rest_.size()) throw std::logic_error("thinwire: matrices need more room than was made for them");
    const std::span<T> taken(reinterpret_cast<T*>(rest_.data()), count);
    rest_ = rest_.subspan(bytes);
    return taken;
  }

  // What take() of so many needs.
  template <class T>
  static constexpr std::size_t bytes_for(std::size_t count) {
    return (count * sizeof(T) + 63) / 64 * 64;
  }

 private:
  std::span<std::byte> rest_;
};

}  // namespace thinwire::kernels
