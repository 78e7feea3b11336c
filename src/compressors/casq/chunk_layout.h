// How the parts of a chunk's code follow one another, for its encoder and its decoder.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>

#include "compressors/casq/coding_tables.h"
#include "kernels/level_planes.h"

namespace thinwire::casq {

// A code's first byte.
enum class ChunkKind : std::uint8_t { kZeros = 0, kExact = 1, kOneState = 2, kFourStates = 3, kManyStates = 4 };

constexpr UnaryCoding unary_coding(std::size_t magnitude) {
  return kUnaryCodings[magnitude < kUnaryCodings.size() ? magnitude : kUnaryCodings.size() - 1];
}
// A block's first plane in bytes: those of a plane, or the place of its only level.
constexpr std::size_t density_bytes(std::size_t density) {
  return density == 0 ? 0 : density == 1 ? 1 : kernels::kLevelBlock / 8;
}
inline const CodingTable& density_table(const CodingTables& tables, std::size_t density) {
  return density == 1 ? tables.place : tables.bits[kDensityCodings[density].table];
}

// Of a magnitude's planes the first is a string of its own, unless it has the same table as the others, which are one string in any
// case. Each plane is a run: of the bytes that its bits begin or end in and that no run has had before.
class PlaneRuns {
 public:
  explicit PlaneRuns(std::size_t magnitude) : coding_(unary_coding(magnitude)) {}

  // To be asked for each plane in turn, with the number of its bits.
  void next(std::size_t bits) {
    if (plane_ == 1 && coding_.first != coding_.others) position_ = 8 * end_;
    begin_bit_ = position_;
    position_ += bits;
    begin_ = end_;
    end_ = (position_ + 7) / 8;
    ++plane_;
  }
  std::size_t begin_bit() const { return begin_bit_; }
  std::size_t begin() const { return begin_; }
  std::size_t end() const { return end_; }
  std::size_t table_number() const { return plane_ == 1 ? coding_.first : coding_.others; }
  const CodingTable& table(const CodingTables& tables) const { return tables.bits[table_number()]; }

 private:
  UnaryCoding coding_;
  std::size_t plane_ = 0, position_ = 0, begin_bit_ = 0, begin_ = 0, end_ = 0;
};

// Numbers by group, in their order.
template <std::size_t kGroups, std::size_t kMost>
class Grouped {
 public:
  // group(number) is below kGroups.
  template <class Group>
  Grouped(std::span<const std::uint16_t> numbers, const Group& group) {
    for (const std::uint16_t i : numbers) ++ends_[group(i)];
    for (std::size_t g = 1; g <= kGroups; ++g) ends_[g] = static_cast<std::uint16_t>(ends_[g] + ends_[g - 1]);
    for (const std::uint16_t i : numbers | std::views::reverse) members_[--ends_[group(i)]] = i;
  }
  std::span<std::uint16_t> operator[](std::size_t group) {
    return std::span(members_).subspan(ends_[group], static_cast<std::size_t>(ends_[group + 1] - ends_[group]));
  }

 private:
  std::array<std::uint16_t, kMost> members_;
  std::array<std::uint16_t, kGroups + 1> ends_{};  // beginnings, in the end
};

}  // namespace thinwire::casq
