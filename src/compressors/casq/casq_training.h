// How CASQ's clusters are trained, by all workers together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compressors/casq/casq_options.h"
#include "core/work.h"
#include "kernels/statistics.h"

namespace thinwire {

inline constexpr std::size_t kHistogramCounts = 2 * kernels::SignedHistogram::kBins;

// As options say: optimal_thresholds() or thresholds_with_tails().
std::vector<float> trained_thresholds(std::span<const std::int32_t> counts, int bits, const CasqOptions& options);

// What the first step's clusters are made from if there is nothing to train on: the Laplace distribution, which gradients
// resemble more than any other that needs no parameter.
std::vector<std::int32_t> laplace_histogram();

// Adds values of a parameter, normalised by the mean magnitude of their chunk (or block), to its histogram: a million at
// most, chunks spread evenly where there are more. Returns their sum of squares, as of all its elements. chunk: room for
// kChunkElements.
double count_values(const ParameterView& parameter, Scope scope, std::span<float> chunk, std::span<std::int32_t> counts);
// How many of the parameters' elements that looks at.
std::uint64_t counted_elements(std::span<const ParameterView* const> parameters);

// What a parameter brings and costs with each number of bits, from 1 on.
struct BitChoices {
  std::vector<double> error;  // expected, of all its elements and workers
  std::vector<double> cost;   // bits on the wire
};

// The bits of each: 1 at first, then one more wherever it saves the most error for its cost, while the sum of costs is at
// most `budget`. The same for the same input on every machine.
std::vector<std::uint8_t> spend_budget(std::span<const BitChoices> parameters, double budget);

}  // namespace thinwire
