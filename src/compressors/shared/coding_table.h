// Frequencies of the values of a byte, ready for a range coder (range_coder.h), by whole-number arithmetic: the same on every machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/byte_sets.h"

namespace thinwire {

constexpr unsigned kFrequencyBits = 12;
constexpr std::uint32_t kFrequencySum = 1U << kFrequencyBits;
constexpr std::uint8_t kEscape = 0xFF;

struct CodingTable {
  struct Coding {
    std::uint64_t reciprocal;
    std::uint32_t limit;  // a state from here on gives off 16 bits first; 0 for a value that the table lacks
    std::uint16_t bias, complement;
  };
  std::array<Coding, 256> codings;
  std::array<std::uint32_t, 256> ranges;             // frequency, and where the range begins << 16
  std::array<std::uint8_t, kFrequencySum> values;    // whose range a place lies in
  bool escapes;                                      // kEscape stands for the values that the table lacks,
  kernels::ByteSet escaped;                          // and for itself: these

  std::uint32_t frequency(std::size_t value) const { return ranges[value] & 0xFFFF; }
};

using Frequencies = std::array<std::uint32_t, 256>;  // of values, of kFrequencySum

// The most likely value takes what the sum lacks, or has too much: less than its frequency.
CodingTable table_of(Frequencies frequencies, bool escapes);
// Each of 256 values as likely.
const CodingTable& even_bytes();

}  // namespace thinwire
