// Sets of bytes, looked for in many at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire::kernels {

class ByteSet {
 public:
  void insert(std::uint8_t value) { rows_[row_of(value)] |= bit_of(value); }
  bool contains(std::uint8_t value) const { return (rows_[row_of(value)] & bit_of(value)) != 0; }
  // Of 16 rows for values below 128 and 16 for the others, by their low four bits; a row has a bit for each of the next three.
  const std::uint8_t* rows() const { return rows_.data(); }

 private:
  static std::size_t row_of(std::uint8_t value) { return value / 128 * 16U + value % 16; }
  static std::uint8_t bit_of(std::uint8_t value) { return static_cast<std::uint8_t>(1U << (value / 16 % 8)); }

  alignas(16) std::array<std::uint8_t, 32> rows_{};
};

// Puts `instead` in the place of each of the values that is in the set, and these behind one another into `taken`, which has room for all.
// Returns how many they are.
std::size_t take_out(std::span<std::uint8_t> values, const ByteSet& set, std::uint8_t instead, std::uint8_t* taken);

}  // namespace thinwire::kernels
