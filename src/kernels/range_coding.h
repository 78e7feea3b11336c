// Steps of a range coder (compressors/shared/range_coder.h): of one state, and of as many as fill vectors. The same bits on every target.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace thinwire::kernels {

constexpr unsigned kFrequencyBits = 12;
constexpr std::uint32_t kFrequencySum = 1U << kFrequencyBits;
// States are from here to 2^31 between steps, and give off, or take, words of 16 bits.
constexpr std::uint32_t kLeastState = 1U << 15;

// Of 256 values their frequencies f, kFrequencySum in all, ready for both directions. A value's range is the f places from its beginning on.
struct RangeTable {
  // Of each place: the value in whose range it lies, where in that range << 8, f - 1 << 20.
  std::array<std::uint32_t, kFrequencySum> places;
  // x / f is x * reciprocal >> 32 >> shift, of states x. For f = 1 that is one less, which the bias makes good.
  std::array<std::uint32_t, 256> reciprocals;
  // The bias, which is the range's beginning (for f = 1 and kFrequencySum - 1), kFrequencySum - f << 13, shift << 26.
  std::array<std::uint32_t, 256> codings;

  std::uint32_t frequency(std::size_t value) const { return kFrequencySum - (codings[value] >> 13 & 0x1FFF); }
};
RangeTable range_table_of(std::span<const std::uint32_t, 256> frequencies);

// Puts a value into a state, from the end of words towards their front, before which there is room for one.
inline void range_put(const RangeTable& table, std::uint32_t& state, std::uint16_t*& next, std::uint8_t value) {
  const std::uint32_t coding = table.codings[value], f = table.frequency(value);
  next[-1] = static_cast<std::uint16_t>(state);
  const std::uint32_t full = state >= f << (31 - kFrequencyBits) ? 1 : 0;  // not a branch, which nothing would foretell
  next -= full;
  const std::uint32_t x = state >> 16 * full;
  const auto quotient = static_cast<std::uint32_t>(std::uint64_t{x} * table.reciprocals[value] >> 32) >> (coding >> 26);
  state = x + (coding & 0x1FFF) + quotient * (kFrequencySum - f);
}

// The inverse. Reads two bytes at `next`, whether it needs them or not.
inline std::uint8_t range_take(const RangeTable& table, std::uint32_t& state, const std::byte*& next) {
  const std::uint32_t place = table.places[state % kFrequencySum];
  const std::uint32_t x = ((place >> 20) + 1) * (state >> kFrequencyBits) + (place >> 8 & 0xFFF);
  std::uint16_t word;
  std::memcpy(&word, next, sizeof word);
  const std::uint32_t low = x < kLeastState ? 1 : 0;  // not a branch, as above
  state = x << 16 * low | (word & (0 - low));
  next += low * sizeof word;
  return static_cast<std::uint8_t>(place);
}

// The i-th of `values` goes into state i mod kRangeLanes, or comes from it. Behind them kRangeLanes bytes may be read, or written with anything.
constexpr std::size_t kRangeLanes = 32;
using RangeStates = std::array<std::uint32_t, kRangeLanes>;

// Puts them from the last one on. Returns where the words begin. Before `next` there is room for a word of each value and kRangeLanes more.
std::uint16_t* range_put_run(const RangeTable& table, RangeStates& states, std::uint16_t* next, std::span<const std::uint8_t> values);
// Returns where the words end that were taken: if that is beyond `end`, values are void. Reads at most kRangeReadsBeyond bytes beyond `end`.
constexpr std::size_t kRangeReadsBeyond = kRangeLanes * sizeof(std::uint16_t);
const std::byte* range_take_run(const RangeTable& table, RangeStates& states, const std::byte* next, const std::byte* end, std::span<std::uint8_t> values);

}  // namespace thinwire::kernels
