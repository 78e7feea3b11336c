// The classes of a chunk's blocks, as values that its coder codes: which table each comes from depends on the block before alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compressors/casq/coding_tables.h"
#include "kernels/level_planes.h"

namespace thinwire::casq {

// 0, -1, 1, -2, 2, ... as 0, 1, 2, 3, 4, ...
constexpr std::uint8_t fold(int distance) {
  return static_cast<std::uint8_t>(distance >= 0 ? 2 * distance : -2 * distance - 1);
}
constexpr int unfold(std::uint8_t folded) { return folded % 2 == 0 ? folded / 2 : -(folded + 1) / 2; }

// What the classes of the next block are told from.
struct ClassContext {
  std::uint8_t density = 4, magnitude = 5;  // of the last block that is not all zero
  bool after_others = false;
};

// Which of the tables a chunk uses.
struct ClassTables {
  std::uint8_t after_zero = 0, after_others = 0, magnitude = 0;

  std::uint16_t packed() const { return static_cast<std::uint16_t>(after_zero | after_others << 4 | magnitude << 8); }
  static ClassTables unpack(std::uint16_t packed) {
    return {static_cast<std::uint8_t>(packed & 15), static_cast<std::uint8_t>(packed >> 4 & 15), static_cast<std::uint8_t>(packed >> 8 & 7)};
  }
};
constexpr std::uint16_t kClassTablesEnd = 1 << 11;  // packed() is below

// The density of a block with this many levels that are not zero.
std::uint8_t density_of(unsigned count);

// What the classes of a chunk's blocks are coded as.
struct CodedClasses {
  static constexpr std::size_t kContexts = 3;  // the density after zero, after others; the magnitude
  struct Value {
    std::uint8_t value, context;
  };
  std::span<Value> values;  // of at least twice the blocks
  std::size_t count;
  ClassTables tables;  // those that cost least
  std::uint64_t cost;  // 1/256 bit, of the values alone
};
// densities: one a block.
void code_classes(std::span<const kernels::LevelBlock> blocks, std::span<std::uint8_t> densities, CodedClasses& coded);

inline const CodingTable& class_table(const CodingTables& all, const ClassTables& chosen, unsigned context) {
  if (context == 2) return all.magnitude[chosen.magnitude];
  return all.density[context][context == 0 ? chosen.after_zero : chosen.after_others];
}

}  // namespace thinwire::casq
