// Floats in steps of one size, block by block, as planes of bits: the part of casq:rate= that every entry goes through.
//
// Entry v has the level q = floor(|v| / step + 0.4) and its sign. A block of 128 entries has a magnitude, which tells how large its
// levels are that are not zero: 0 if they all are 1, else 7 + floor(log2 e), e the mean of q - 1 over them, from 1 to 28. Of q - 1 the
// low s bits are sent as they are, s = max(0, magnitude - 7); what is above, h, in unary: a plane that says which entries have h >= 1,
// one that says which of those have h >= 2, and so on, at most 12. Each plane holds only the entries that the one before said yes of.
// An entry in the twelfth has a tail: h - 12 as a byte if that is below 255; else, or if the level is 2^22 - 1 or more, the byte 255 and
// the exact value.
//
// It decodes to its sign times (q + offset) * step, the offset of its block's magnitude: the mean of a geometric density's cells.
// The same bits on every target.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/bit_string.h"
#include "kernels/opening.h"

namespace thinwire::kernels {

constexpr std::size_t kLevelBlock = 128;
constexpr std::size_t kUnaryPlanes = 12;
constexpr unsigned kExactTail = 255;
constexpr std::size_t kMagnitudes = 29;
constexpr int kUnitMagnitude = 7;  // a mean of 1 to 2 above one
// Steps and their inverses are normal numbers, and no level of any code decodes to infinity.
constexpr float kLeastStep = 0x1p-125F, kLargestStep = 0x1p96F;

constexpr unsigned low_bits_of(unsigned magnitude) {
  return magnitude > kUnitMagnitude ? magnitude - kUnitMagnitude : 0;
}
constexpr std::size_t level_blocks(std::size_t n) { return (n + kLevelBlock - 1) / kLevelBlock; }

// Entry i of a block is bit i mod 64 of word i / 64.
using BlockBits = std::array<std::uint64_t, 2>;

struct LevelBlock {
  BlockBits nonzero;
  std::uint8_t count = 0;  // of levels that are not zero
  std::uint8_t magnitude = 0;
};
// Of each entry of a block the number that is in unary, h, at most 255; 0 where the level is 0.
using UnaryNumbers = std::array<std::uint8_t, kLevelBlock>;

// What n floats become: one block and its numbers for each level_blocks(n).
struct SplitLevels {
  std::span<LevelBlock> blocks;
  std::span<UnaryNumbers> unary;  // of blocks whose magnitude is 0 they mean nothing
  std::span<std::byte> raw;    // raw_capacity(n) bytes. Of each block: signs (1 for negative) of its levels that are not zero, then
                               // for each low bit, least first, that bit of each of them; bit by bit without gaps
  std::span<std::byte> tails;  // tail_capacity(n) bytes
};
constexpr std::size_t raw_capacity(std::size_t n) { return level_blocks(n) * kLevelBlock * (1 + kMagnitudes - 1 - kUnitMagnitude) / 8 + 16; }
constexpr std::size_t tail_capacity(std::size_t n) { return level_blocks(n) * kLevelBlock * 5; }

struct SplitTotals {
  std::size_t raw_bits = 0;
  std::size_t tail_bytes = 0;
  std::size_t nonzero = 0;
  bool finite = true;  // else all that was written is void
};
// Finds the levels of values. Unless residual is empty, it becomes value - decoded value; it is not the memory of the
// values. The step is from kLeastStep to kLargestStep. past_caches: a residual that begins with a line of memory is written past the
// caches: where so much is written that none of it is in them when it is read, memory is not read first.
SplitTotals split_levels(std::span<const float> values, float step, const SplitLevels& out, std::span<float> residual, bool past_caches = false);
// The same of values that are opened block by block, so that memory is read while the block before is split. `opened` becomes what open() returns.
SplitTotals open_and_split(const Unopened& values, float step, const SplitLevels& out, std::span<float> residual, bool past_caches, Opened& opened);

struct PlaneTotals {
  std::size_t active = 0;  // blocks in which a bit is set: the first so many of `active`, afterwards
  std::size_t set = 0;     // bits
};
// Appends plane `plane` of each of the active blocks. Before plane 0, asked[b] is which levels of block b are not zero; afterwards it is
// which of them the plane says yes of.
PlaneTotals split_plane(std::span<const UnaryNumbers> unary, std::span<BlockBits> asked, std::span<std::uint16_t> active, std::size_t plane,
                        BitAppender& string);

constexpr std::size_t kUnaryDigits = 4;
static_assert(kUnaryPlanes == 0b1100, "of the last plane, and of no other, both upper digits are ones");

// What the decoder knows of a block that has a level which is not zero.
struct JoinedBlock {
  BlockBits nonzero;
  std::array<BlockBits, kUnaryDigits> unary;  // of h, in binary, least first: as many digits as `planes` has
  std::uint8_t magnitude;
  std::uint8_t planes;  // in unary, that have a bit
};

// Takes plane `plane` of each of the active blocks from a string of bits that begins at bit `position`, and may be read 16 bytes beyond
// what they need. asked: as for split_plane().
PlaneTotals join_plane(std::span<JoinedBlock> blocks, std::span<BlockBits> asked, std::span<std::uint16_t> active, std::size_t plane,
                       const std::byte* bits, std::size_t position);

// An upper bound of what its levels decode to at a step, those with an exact value apart.
float largest_decoded(const JoinedBlock& block, float step);

struct JoinTotals {
  std::size_t raw_bits = 0;
  std::size_t tails = 0;
};
JoinTotals count_joined(std::span<const JoinedBlock> blocks);

// out[i] = weight * decoded value, or out[i] += weight * decoded value, of out.size() entries, beyond which no level is. places: the numbers of
// the blocks, which are those that are not all zero, rising. raw has the bits that count_joined() tells, and may be read 16 bytes beyond them;
// tails are as many as it tells, and their values finite.
void join_levels(std::span<const JoinedBlock> blocks, std::span<const std::uint16_t> places, const std::byte* raw, const std::byte* tails,
                 float step, float weight, std::span<float> out);
// Writes past the caches: where so much is written that none of it is in them when it is read, memory is not read first.
void join_levels_past_caches(std::span<const JoinedBlock> blocks, std::span<const std::uint16_t> places, const std::byte* raw,
                             const std::byte* tails, float step, float weight, std::span<float> out);
void join_levels_add(std::span<const JoinedBlock> blocks, std::span<const std::uint16_t> places, const std::byte* raw, const std::byte* tails,
                     float step, float weight, std::span<float> out);

}  // namespace thinwire::kernels
