// A range coder of bytes (rANS: J. Duda, Asymmetric numeral systems, arXiv 1311.2540) with several states that take turns, so that a processor works on
// many at once: 1 or 4 one by one, or 32 in vectors. What is coded last is decoded first.
//
// Bytes come in runs with one table each; the i-th byte of a run belongs to state i mod the number of states. In a run whose table has
// escapes each value that the table lacks is coded as kEscape, and all of them follow as a run of their own with equal frequencies.
//
// Behind the bytes of a run kMostStates bytes may be read, or be written with anything where a run is taken.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compressors/shared/coding_table.h"
#include "kernels/range_coding.h"

namespace thinwire {

constexpr std::size_t kMostStates = kernels::kRangeLanes;

// Writes words from the end of memory towards its front, where there is room for a word for each byte and kMostStates more.
template <std::size_t kStates>
class RangeEncoder {
 public:
  // States begin as 2^16 and these 16 bits, which the decoder finds in the end.
  RangeEncoder(std::uint16_t* end, const std::array<std::uint16_t, kMostStates>& hidden) : next_(end) {
    for (std::size_t s = 0; s < kStates; ++s) states_[s] = 1U << 16 | hidden[s];
  }

  void put_run(const CodingTable& table, std::span<const std::uint8_t> values) {
    if constexpr (kStates == kernels::kRangeLanes) {
      next_ = kernels::range_put_run(table.range, states_, next_, values);
    } else {
      std::array<std::uint32_t, kStates> x = states_;  // kept in registers
      std::uint16_t* next = next_;
      std::size_t i = values.size() - values.size() % kStates;
      for (std::size_t s = kStates; s > 0; --s)
        if (i + s - 1 < values.size()) kernels::range_put(table.range, x[s - 1], next, values[i + s - 1]);
      for (; i != 0; i -= kStates)
        for (std::size_t s = kStates; s > 0; --s) kernels::range_put(table.range, x[s - 1], next, values[i - kStates + s - 1]);
      states_ = x;
      next_ = next;
    }
  }
  // One value of a run of several tables, the i-th; its last one is put first.
  void put(std::size_t i, const CodingTable& table, std::uint8_t value) { kernels::range_put(table.range, states_[i % kStates], next_, value); }

  std::uint16_t* front() const { return next_; }
  const std::array<std::uint32_t, kStates>& states() const { return states_; }

 private:
  std::uint16_t* next_;
  std::array<std::uint32_t, kStates> states_;
};

// Reads words that are followed by kReadBeyond bytes which may be anything. Whether it went beyond the end, the caller asks now and then:
// at least after every 64 bytes that were taken.
constexpr std::size_t kReadBeyond = 64 * sizeof(std::uint16_t) + std::max<std::size_t>(2, kernels::kRangeReadsBeyond);

template <std::size_t kStates>
class RangeDecoder {
 public:
  static constexpr std::size_t kStateCount = kStates;

  RangeDecoder(std::span<const std::uint32_t, kStates> states, const std::byte* words) : next_(words) {
    std::copy(states.begin(), states.end(), states_.begin());
  }

  // One value of a run of several tables, the i-th.
  std::uint8_t take(std::size_t i, const CodingTable& table) { return kernels::range_take(table.range, states_[i % kStates], next_); }

  // False if that needs words beyond `end`, which next() tells by being beyond it too.
  [[nodiscard]] bool take_run(const CodingTable& table, std::span<std::uint8_t> values, const std::byte* end) {
    if constexpr (kStates == kernels::kRangeLanes) {
      next_ = kernels::range_take_run(table.range, states_, next_, end, values);
      return next_ <= end;
    } else {
      constexpr std::size_t kAtOnce = 64;
      for (; !values.empty() && next_ <= end; values = values.subspan(std::min(kAtOnce, values.size())))
        take_some(table, values.first(std::min(kAtOnce, values.size())));
      return next_ <= end;
    }
  }

  const std::byte* next() const { return next_; }
  const std::array<std::uint32_t, kStates>& states() const { return states_; }

 private:
  void take_some(const CodingTable& table, std::span<std::uint8_t> values) {
    std::array<std::uint32_t, kStates> x = states_;  // kept in registers
    const std::byte* next = next_;
    std::size_t i = 0;
    for (; i + kStates <= values.size(); i += kStates)
      for (std::size_t s = 0; s < kStates; ++s) values[i + s] = kernels::range_take(table.range, x[s], next);
    for (std::size_t s = 0; i < values.size(); ++i, ++s) values[i] = kernels::range_take(table.range, x[s], next);
    states_ = x;
    next_ = next;
  }

  const std::byte* next_;
  std::array<std::uint32_t, kStates> states_;
};

// A state in memory: the exponent of the largest power of two in it, less 15, as 4 bits, then the bits below. States are about as often of any exponent.
constexpr std::size_t most_state_bytes(std::size_t states) { return (34 * states + 7) / 8; }
// Returns how many bytes it wrote; 8 beyond them may be written.
std::size_t write_states(std::span<const std::uint32_t> states, std::byte* to);
// Returns how many bytes it read, of which there are most_state_bytes() and 8. No bits are states of no decoder.
std::size_t read_states(const std::byte* from, std::span<std::uint32_t> states);

// Puts kEscape in the place of each of a run's values that the table lacks, and these behind one another. Returns how many they are.
inline std::size_t take_out_escapes(const CodingTable& table, std::span<std::uint8_t> values, std::uint8_t* escaped) {
  return table.escapes ? kernels::take_out(values, table.escaped, kEscape, escaped) : 0;
}

// Takes a run with its escapes. False if that needs words beyond `end`; there must be kReadBeyond bytes behind it.
template <class Decoder>
[[nodiscard]] bool take_run(Decoder& decoder, const CodingTable& table, std::span<std::uint8_t> values, const std::byte* end) {
  if (!decoder.take_run(table, values, end)) return false;
  if (!table.escapes) return true;
  constexpr std::size_t kAtOnce = 64;  // a multiple of any number of states
  std::array<std::uint8_t, kAtOnce + kMostStates> escaped;
  auto next = values.begin();
  const auto count = static_cast<std::size_t>(std::count(values.begin(), values.end(), kEscape));
  for (std::size_t begin = 0; begin < count; begin += kAtOnce) {
    const auto some = std::span(escaped).first(std::min(kAtOnce, count - begin));
    if (!decoder.take_run(even_bytes(), some, end)) return false;
    for (const std::uint8_t value : some) {
      next = std::find(next, values.end(), kEscape);
      *next++ = value;
    }
  }
  return true;
}

}  // namespace thinwire
