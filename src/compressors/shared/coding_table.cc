#include "compressors/shared/coding_table.h"

#include <algorithm>
#include <numeric>

namespace thinwire {

CodingTable table_of(Frequencies frequencies, bool escapes) {
  auto& largest = *std::max_element(frequencies.begin(), frequencies.end());
  largest += kFrequencySum - std::accumulate(frequencies.begin(), frequencies.end(), 0U);
  CodingTable table{kernels::range_table_of(frequencies), escapes, {}};
  for (std::size_t value = 0; value < frequencies.size(); ++value)
    if (escapes && (frequencies[value] == 0 || value == kEscape)) table.escaped.insert(static_cast<std::uint8_t>(value));
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
