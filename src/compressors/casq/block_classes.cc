#include "compressors/casq/block_classes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

namespace thinwire::casq {
namespace {

constexpr std::size_t kMostValues = 2 * kernels::kMagnitudes;
// Sixteen bits each, of which processors multiply and add up many at once.
using Costs = std::array<std::int16_t, kMostValues>;  // 1/256 bit
using Counts = std::array<std::int16_t, kMostValues>;

Costs costs_of(const CodingTable& table) {
  Costs costs;
  for (std::size_t value = 0; value < costs.size(); ++value) {
    const std::uint32_t frequency = std::max(1U, table.range.frequency(value));
    costs[value] = static_cast<std::int16_t>(std::lround(256 * (kFrequencyBits - std::log2(frequency))));
  }
  return costs;
}

struct AllCosts {
  std::array<std::array<Costs, kDensityTables>, 2> density;
  std::array<Costs, kMagnitudeTables> magnitude;
};
const AllCosts& all_costs() {
  static const auto made = [] {
    auto costs = std::make_unique<AllCosts>();
    const CodingTables& tables = coding_tables();
    for (std::size_t after = 0; after < 2; ++after)
      for (std::size_t t = 0; t < kDensityTables; ++t) costs->density[after][t] = costs_of(tables.density[after][t]);
    for (std::size_t t = 0; t < kMagnitudeTables; ++t) costs->magnitude[t] = costs_of(tables.magnitude[t]);
    return costs;
  }();
  return *made;
}

// The table that codes these values at least cost, which is added to `cost`.
std::uint8_t cheapest(std::span<const Costs> tables, const Counts& counts, std::uint64_t& cost) {
  std::int32_t least = std::numeric_limits<std::int32_t>::max();
  std::size_t best = 0;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    std::int32_t sum = 0;
    for (std::size_t value = 0; value < counts.size(); ++value) sum += counts[value] * tables[t][value];
    if (sum < least) least = sum, best = t;
  }
  cost += static_cast<std::uint64_t>(least);
  return static_cast<std::uint8_t>(best);
}

}  // namespace

std::uint8_t density_of(unsigned count) {
  static constexpr auto kOfCount = [] {
    std::array<std::uint8_t, kernels::kLevelBlock + 1> densities{};
    for (std::size_t i = 1; i < densities.size(); ++i)
      densities[i] = static_cast<std::uint8_t>(std::upper_bound(kDensityFrom.begin(), kDensityFrom.end(), i) - kDensityFrom.begin() - 1);
    return densities;
  }();
  return kOfCount[count];
}

void code_classes(std::span<const kernels::LevelBlock> blocks, std::span<std::uint8_t> densities, CodedClasses& coded) {
  std::array<Counts, CodedClasses::kContexts> counts{};
  std::size_t next = 0;
  const auto put = [&](int value, unsigned context) {
    coded.values[next++] = {static_cast<std::uint8_t>(value), static_cast<std::uint8_t>(context)};
    ++counts[context][static_cast<std::size_t>(value)];
  };
  ClassContext context;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::uint8_t density = densities[b] = density_of(blocks[b].count);
    put(density == 0 ? 0 : 1 + fold(density - context.density), context.after_others ? 1 : 0);
    context.after_others = density != 0;
    if (density == 0) continue;
    put(fold(blocks[b].magnitude - context.magnitude), 2);
    context.density = density;
    context.magnitude = blocks[b].magnitude;
  }
  coded.count = next;
  coded.cost = 0;
  coded.tables.after_zero = cheapest(all_costs().density[0], counts[0], coded.cost);
  coded.tables.after_others = cheapest(all_costs().density[1], counts[1], coded.cost);
  coded.tables.magnitude = cheapest(all_costs().magnitude, counts[2], coded.cost);
}

}  // namespace thinwire::casq
