// A range coder of bytes (rANS: J. Duda, Asymmetric numeral systems, arXiv 1311.2540) with 1, 2 or 4 states that take turns, so that a
// processor works on several at once. States are from 2^15 to 2^31 and give off 16 bits at a time. What is coded last is decoded first.
//
// Bytes come in runs with one table each; the i-th byte of a run belongs to state i mod the number of states. In a run whose table has
// escapes each value that the table lacks is coded as kEscape, and all of them follow as a run of their own with equal frequencies.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "compressors/shared/coding_table.h"

namespace thinwire {

constexpr std::size_t kMostStates = 4;
constexpr std::uint32_t kLeastState = 1U << 15;

// The upper half of a product.
constexpr std::uint64_t high_product(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(Wide{a} * b >> 64);
}

// Writes words from the end of memory towards its front, where there is a word for each byte.
template <std::size_t kStates>
class RangeEncoder {
 public:
  // States begin as 2^16 and these 16 bits, which the decoder finds in the end.
  RangeEncoder(std::uint16_t* end, const std::array<std::uint16_t, kMostStates>& hidden) : next_(end) {
    for (std::size_t s = 0; s < kStates; ++s) states_[s] = 1U << 16 | hidden[s];
  }

  void put_run(const CodingTable& table, std::span<const std::uint8_t> values) {
    put_all(values.size(), [&](std::size_t i) -> const CodingTable::Coding& { return table.codings[values[i]]; });
  }

  // Values of several tables: the i-th of `count` as coding_of(i) says.
  template <class CodingOf>
  void put_all(std::size_t count, const CodingOf& coding_of) {
    std::array<std::uint32_t, kStates> x = states_;  // kept in registers
    std::uint16_t* next = next_;
    std::size_t i = count - count % kStates;
    for (std::size_t s = kStates; s > 0; --s)
      if (i + s - 1 < count) put(x[s - 1], next, coding_of(i + s - 1));
    for (; i != 0; i -= kStates)
      for (std::size_t s = kStates; s > 0; --s) put(x[s - 1], next, coding_of(i - kStates + s - 1));
    states_ = x;
    next_ = next;
  }

  std::uint16_t* front() const { return next_; }
  const std::array<std::uint32_t, kStates>& states() const { return states_; }

 private:
  static void put(std::uint32_t& state, std::uint16_t*& next, const CodingTable::Coding& coding) {
    next[-1] = static_cast<std::uint16_t>(state);
    const std::uint32_t full = state >= coding.limit ? 1 : 0;  // not a branch, which nothing would foretell
    next -= full;
    const std::uint32_t x = state >> 16 * full;
    state = x + coding.bias + static_cast<std::uint32_t>(high_product(x, coding.reciprocal)) * coding.complement;
  }

  std::uint16_t* next_;
  std::array<std::uint32_t, kStates> states_;
};

// Reads words that are followed by kReadBeyond bytes which may be anything. Whether it went beyond the end, the caller asks now and then:
// at least after every 64 bytes that were taken.
constexpr std::size_t kReadBeyond = 64 * sizeof(std::uint16_t) + 2;

template <std::size_t kStates>
class RangeDecoder {
 public:
  static constexpr std::size_t kStateCount = kStates;

  RangeDecoder(std::span<const std::uint32_t, kStates> states, const std::byte* words) : next_(words) {
    std::copy(states.begin(), states.end(), states_.begin());
  }

  std::uint8_t take(std::size_t state, const CodingTable& table) { return take(states_[state], next_, table); }

  // At most 64 values.
  void take_some(const CodingTable& table, std::span<std::uint8_t> values) {
    std::array<std::uint32_t, kStates> x = states_;  // kept in registers
    const std::byte* next = next_;
    std::size_t i = 0;
    for (; i + kStates <= values.size(); i += kStates)
      for (std::size_t s = 0; s < kStates; ++s) values[i + s] = take(x[s], next, table);
    for (std::size_t s = 0; i < values.size(); ++i, ++s) values[i] = take(x[s], next, table);
    states_ = x;
    next_ = next;
  }

  const std::byte* next() const { return next_; }
  const std::array<std::uint32_t, kStates>& states() const { return states_; }

 private:
  static std::uint8_t take(std::uint32_t& state, const std::byte*& next, const CodingTable& table) {
    const std::uint32_t place = state % kFrequencySum;
    const std::uint8_t value = table.values[place];
    const std::uint32_t range = table.ranges[value];
    const std::uint32_t x = (range & 0xFFFF) * (state >> kFrequencyBits) + place - (range >> 16);
    std::uint16_t word;
    std::memcpy(&word, next, sizeof word);
    const std::uint32_t low = x < kLeastState ? 1 : 0;  // not a branch, as above
    state = x << 16 * low | (word & (0 - low));
    next += low * sizeof word;
    return value;
  }

  const std::byte* next_;
  std::array<std::uint32_t, kStates> states_;
};

// Puts kEscape in the place of each of a run's values that the table lacks, and these behind one another. Returns how many they are.
inline std::size_t take_out_escapes(const CodingTable& table, std::span<std::uint8_t> values, std::uint8_t* escaped) {
  return table.escapes ? kernels::take_out(values, table.escaped, kEscape, escaped) : 0;
}

// Takes a run with its escapes. False if that needs words beyond `end`; there must be kReadBeyond bytes behind it.
template <class Decoder>
[[nodiscard]] bool take_run(Decoder& decoder, const CodingTable& table, std::span<std::uint8_t> values, const std::byte* end) {
  constexpr std::size_t kAtOnce = 64;
  for (auto left = values; !left.empty(); left = left.subspan(std::min(kAtOnce, left.size()))) {
    decoder.take_some(table, left.first(std::min(kAtOnce, left.size())));
    if (decoder.next() > end) return false;
  }
  if (!table.escapes) return true;
  std::array<std::uint8_t, kAtOnce> escaped;
  auto next = values.begin();
  const auto count = static_cast<std::size_t>(std::count(values.begin(), values.end(), kEscape));
  for (std::size_t begin = 0; begin < count; begin += kAtOnce) {
    const auto some = std::span(escaped).first(std::min(kAtOnce, count - begin));
    decoder.take_some(even_bytes(), some);
    if (decoder.next() > end) return false;
    for (const std::uint8_t value : some) {
      next = std::find(next, values.end(), kEscape);
      *next++ = value;
    }
  }
  return true;
}

}  // namespace thinwire
