#include "compressors/casq/casq_training.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "compressors/casq/casq_chunk.h"

namespace thinwire {
namespace {

constexpr std::uint64_t kTrainingChunks = 32;

float scale_of(const kernels::Magnitudes& magnitudes, std::size_t elements) {
  return magnitudes.sum_abs / static_cast<float>(elements);
}

// Values of one scale. False if they cannot be counted.
bool count_scaled(std::span<const float> values, float scale, std::span<std::int32_t> counts) {
  const float inverse = 1.0f / scale;
  if (!std::isfinite(inverse) || !(scale > 0)) return false;
  kernels::add_to_histogram(values, inverse, counts);
  return true;
}

// What a block's clusters lose is multiplied by its scale's square, and so are its counts, relative to the chunk's.
void count_blocks(std::span<const float> chunk, float mean_square, std::span<std::int32_t> counts) {
  constexpr float kUnit = 4, kMost = 1024;
  std::array<std::int32_t, kHistogramCounts> block_counts;
  for (std::size_t begin = 0; begin < chunk.size(); begin += CasqChunk::kBlockElements) {
    const auto block = chunk.subspan(begin, std::min(CasqChunk::kBlockElements, chunk.size() - begin));
    const float scale = scale_of(kernels::measure(block), block.size());
    const auto weight = static_cast<std::int32_t>(std::min(kMost, std::round(kUnit * scale * scale / mean_square)));
    block_counts.fill(0);
    if (weight == 0 || !count_scaled(block, scale, block_counts)) continue;
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += weight * block_counts[i];
  }
}

}  // namespace

std::vector<float> trained_thresholds(std::span<const std::int32_t> counts, int bits, const CasqOptions& options) {
  if (options.tail > 0) return thresholds_with_tails(counts, 1 << bits, options.signs, options.tail);
  return optimal_thresholds(counts, 1 << bits, options.signs);
}

std::vector<std::int32_t> laplace_histogram() {
  constexpr double kMass = 1e6;
  std::vector<std::int32_t> counts(kHistogramCounts);
  for (int bin = 0; bin < kernels::SignedHistogram::kBins; ++bin) {
    const double below = bin == 0 ? 0 : kernels::histogram_lower_edge(bin);
    const double mass = std::exp(-below) - std::exp(-kernels::histogram_lower_edge(bin + 1));
    counts[static_cast<std::size_t>(bin)] = static_cast<std::int32_t>(kMass * mass);
    counts[static_cast<std::size_t>(bin + kernels::SignedHistogram::kBins)] = counts[static_cast<std::size_t>(bin)];
  }
  return counts;
}

double count_values(const ParameterView& parameter, Scope scope, std::span<float> chunk, std::span<std::int32_t> counts) {
  const std::uint64_t chunks = (parameter.elements() + kChunkElements - 1) / kChunkElements;
  const std::uint64_t counted = std::min(chunks, kTrainingChunks);
  double energy = 0;
  std::uint64_t elements = 0;
  for (std::uint64_t i = 0; i < counted; ++i) {
    const std::uint64_t first = i * chunks / counted * kChunkElements;
    const auto values = chunk.first(std::min(kChunkElements, parameter.elements() - first));
    parameter.read(first, values);
    elements += values.size();
    const kernels::Magnitudes magnitudes = kernels::measure(values);
    if (!magnitudes.finite) continue;
    const float mean_square = magnitudes.sum_squares / static_cast<float>(values.size());
    if (scope == Scope::kBlock && std::isnormal(mean_square))
      count_blocks(values, mean_square, counts);
    else if (!count_scaled(values, scale_of(magnitudes, values.size()), counts))
      continue;
    energy += static_cast<double>(magnitudes.sum_squares);
  }
  return elements > 0 ? energy * static_cast<double>(parameter.elements()) / static_cast<double>(elements) : 0;
}

std::uint64_t counted_elements(std::span<const ParameterView* const> parameters) {
  std::uint64_t elements = 0;
  for (const ParameterView* parameter : parameters)
    elements += std::min(parameter->elements(), kTrainingChunks * kChunkElements);
  return elements;
}

std::vector<std::uint8_t> spend_budget(std::span<const BitChoices> parameters, double budget) {
  std::vector<std::uint8_t> bits(parameters.size(), 1);
  for (const BitChoices& parameter : parameters) budget -= parameter.cost[0];
  while (true) {
    double best = 0;
    std::size_t chosen = parameters.size();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const std::size_t now = bits[p] - std::size_t{1};
      if (now + 1 == parameters[p].cost.size()) continue;
      const double cost = parameters[p].cost[now + 1] - parameters[p].cost[now];
      const double saved = parameters[p].error[now] - parameters[p].error[now + 1];
      if (cost > budget || !(saved > best * cost)) continue;
      best = saved / cost;
      chosen = p;
    }
    if (chosen == parameters.size()) return bits;
    budget -= parameters[chosen].cost[bits[chosen]] - parameters[chosen].cost[bits[chosen] - std::size_t{1}];
    ++bits[chosen];
  }
}

}  // namespace thinwire
