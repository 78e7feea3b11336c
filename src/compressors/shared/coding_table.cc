#include "compressors/shared/coding_table.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace thinwire {
namespace {

CodingTable::Coding coding_of(std::uint32_t frequency, std::uint32_t begin) {
  if (frequency == 0) return {};
  CodingTable::Coding coding{};
  coding.limit = frequency << (31 - kFrequencyBits);
  coding.complement = static_cast<std::uint16_t>(kFrequencySum - frequency);
  if (frequency == 1) {  // x / 1 by a product would need a bit more
    coding.reciprocal = ~0U;
    coding.bias = begin + kFrequencySum - 1;
    return coding;
  }
  const auto bits = static_cast<unsigned>(std::bit_width(frequency - 1));
  coding.reciprocal = static_cast<std::uint32_t>(((std::uint64_t{1} << (bits + 31)) + frequency - 1) / frequency);
  coding.shift = static_cast<std::uint16_t>(bits - 1);
  coding.bias = begin;
  return coding;
}

}  // namespace

CodingTable table_of(Frequencies frequencies, bool escapes) {
  auto& largest = *std::max_element(frequencies.begin(), frequencies.end());
  largest += kFrequencySum - std::accumulate(frequencies.begin(), frequencies.end(), 0U);
  CodingTable table;
  table.escapes = escapes;
  std::uint32_t begin = 0;
  for (std::size_t value = 0; value < frequencies.size(); ++value) {
    table.codings[value] = coding_of(frequencies[value], begin);
    table.ranges[value] = frequencies[value] | begin << 16;
    std::fill_n(table.values.begin() + begin, frequencies[value], static_cast<std::uint8_t>(value));
    begin += frequencies[value];
  }
  return table;
}

const CodingTable& even_bytes() {
  static const CodingTable table = [] {
    Frequencies frequencies;
    frequencies.fill(kFrequencySum / 256);
    return table_of(frequencies, false);
  }();
  return table;
}

}  // namespace thinwire
