#include "compressors/casq/coding_tables.h"

#include <algorithm>
#include <bit>
#include <memory>

#include "kernels/level_planes.h"

namespace thinwire::casq {
namespace {

using Weights = std::array<std::uint64_t, 256>;

// Of 2^32.
Weights weights_of_bits(std::uint32_t probability) {
  std::array<std::uint64_t, 9> ones{std::uint64_t{1} << 32}, zeros{ones};
  for (std::size_t k = 1; k < ones.size(); ++k) {
    ones[k] = ones[k - 1] * probability >> 16;
    zeros[k] = zeros[k - 1] * (65536 - probability) >> 16;
  }
  Weights weights;
  for (std::size_t value = 0; value < weights.size(); ++value) {
    const auto k = static_cast<std::size_t>(std::popcount(value));
    weights[value] = (ones[k] >> 1) * (zeros[8 - k] >> 1) >> 30;
  }
  return weights;
}

std::uint32_t frequency_of(std::uint64_t weight) {
  return static_cast<std::uint32_t>((weight * kFrequencySum + (std::uint64_t{1} << 31)) >> 32);
}

CodingTable table_of_bits(std::uint32_t probability) {
  const Weights weights = weights_of_bits(probability);
  Frequencies frequencies;
  std::uint64_t lacking = 0;
  for (std::size_t value = 0; value < weights.size(); ++value) {
    frequencies[value] = frequency_of(weights[value]);
    if (frequencies[value] == 0) lacking += weights[value];
  }
  const bool escapes = frequencies[kEscape] == 0;
  if (escapes) frequencies[kEscape] = std::max(1U, frequency_of(lacking));
  return table_of(frequencies, escapes);
}

CodingTable table_of_places() {
  Frequencies frequencies = {};
  std::fill_n(frequencies.begin(), kernels::kLevelBlock, static_cast<std::uint32_t>(kFrequencySum / kernels::kLevelBlock));
  return table_of(frequencies, false);
}

// Value 0 has `zero` of the sum, unless that is 0; then come distances 0, -1, 1, -2, ... up to `largest`, each as likely as the one
// before it times decay / 64.
CodingTable table_of_distances(std::uint32_t zero, std::uint32_t decay, std::size_t largest) {
  Frequencies frequencies = {};
  std::size_t next = 0;
  if (zero > 0) frequencies[next++] = zero;
  std::array<std::uint64_t, 64> weights{std::uint64_t{1} << 32};
  std::uint64_t sum = weights[0];
  for (std::size_t d = 1; d <= largest; ++d) {
    weights[d] = weights[d - 1] * decay >> 6;
    sum += 2 * weights[d];
  }
  for (std::size_t d = 0; d <= largest; ++d)
    for (std::size_t side = 0; side < (d == 0 ? 1 : 2); ++side)
      frequencies[next++] = std::max(1U, static_cast<std::uint32_t>(weights[d] * (kFrequencySum - zero) / sum));
  return table_of(frequencies, false);
}

std::unique_ptr<CodingTables> make_tables() {
  auto tables = std::make_unique<CodingTables>();
  for (std::size_t t = 0; t < kBitProbabilities.size(); ++t) tables->bits[t] = table_of_bits(kBitProbabilities[t]);
  tables->place = table_of_places();
  for (std::size_t t = 0; t < kDensityTables; ++t) {
    tables->density[0][t] = table_of_distances(kZeroAfterZero[t / 4], kDecayAfterZero[t % 4], kDensities - 2);
    tables->density[1][t] = table_of_distances(kZeroAfterOthers[t / 4], kDecayAfterOthers[t % 4], kDensities - 2);
  }
  for (std::size_t t = 0; t < kMagnitudeTables; ++t)
    tables->magnitude[t] = table_of_distances(0, kMagnitudeDecay[t], kernels::kMagnitudes - 1);
  return tables;
}

}  // namespace

const CodingTables& coding_tables() {
  static const std::unique_ptr<const CodingTables> tables = make_tables();
  return *tables;
}

}  // namespace thinwire::casq
