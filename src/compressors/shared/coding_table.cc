#include "compressors/shared/coding_table.h"

#include <algorithm>
#include <numeric>

namespace thinwire {
namespace {

// What a range coder needs to divide by a frequency with a product: x / f is x * ceil(2^64 / f) >> 64, of x below 2^32.
CodingTable::Coding coding_of(std::uint32_t frequency, std::uint32_t begin) {
  if (frequency == 0) return {};
  CodingTable::Coding coding{};
  coding.limit = frequency << (31 - kFrequencyBits);
  coding.complement = static_cast<std::uint16_t>(kFrequencySum - frequency);
  // The reciprocal of 1 would need a bit more. This one makes x / 1 one less, which the bias makes good.
  const std::uint64_t most = ~std::uint64_t{0};
  coding.reciprocal = frequency == 1 ? most : most / frequency + 1;
  coding.bias = static_cast<std::uint16_t>(frequency == 1 ? begin + kFrequencySum - 1 : begin);
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
    if (escapes && (frequencies[value] == 0 || value == kEscape)) table.escaped.insert(static_cast<std::uint8_t>(value));
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
