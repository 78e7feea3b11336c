// Frequencies of the values of a byte, ready for a range coder (range_coder.h), by whole-number arithmetic: the same on every machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/byte_sets.h"
#include "kernels/range_coding.h"

namespace thinwire {

using kernels::kFrequencyBits;
using kernels::kFrequencySum;
constexpr std::uint8_t kEscape = 0xFF;

struct CodingTable {
  kernels::RangeTable range;
  bool escapes;              // kEscape stands for the values that the table lacks,
  kernels::ByteSet escaped;  // and for itself: these
};

using Frequencies = std::array<std::uint32_t, 256>;  // of values, of kFrequencySum

// The most likely value takes what the sum lacks, or has too much: less than its frequency.
CodingTable table_of(Frequencies frequencies, bool escapes);
// Each of 256 values as likely.
const CodingTable& even_bytes();

}  // namespace thinwire
