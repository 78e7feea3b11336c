#include "tool/inspection.h"

#include <set>

#include "thinwire/trial.h"

namespace thinwire::tool {
namespace {

constexpr std::size_t kChunk = 32768;  // means are of a chunk of the library's grid

InspectedRate inspect_rate(const Layout& layout, std::span<const float> gradient, double energy, double rate) {
  constexpr std::size_t kSteps = 3;  // the first step is by a sample
  std::vector<float> steps;
  for (std::size_t s = 0; s < kSteps; ++s) steps.insert(steps.end(), gradient.begin(), gradient.end());
  const TrialReport report = run_trial(layout, steps, 1, kSteps, {.compressor = "casq:feedback=off,rate=" + std::to_string(rate)});
  const auto decoded = std::span<const float>(report.mean).last(gradient.size());
  return {rate, report.per_step.back().bits_per_element.value_or(0), ratio(energy_of_difference(gradient, decoded), energy)};
}

}  // namespace

Inspection inspect(const Layout& layout, std::span<const float> gradient) {
  Inspection result;
  result.all = measure_gradient(gradient, 1);
  result.energy = energy_of(gradient);
  for (std::size_t p = 0; p < layout.parameters().size(); ++p) {
    const Parameter& parameter = layout.parameters()[p];
    const auto values = gradient.subspan(layout.offset(p), parameter.elements());
    const std::uint64_t rows = parameter.shape.size() < 2 ? 1 : static_cast<std::uint64_t>(parameter.shape[0]);
    result.parameters.push_back({parameter.name, parameter.shape, measure_gradient(values, rows), energy_of(values), {}, {}});
  }
  for (int bits = 1; bits <= kInspectedBits; ++bits) {
    const std::string spec = "casq:feedback=off,bits=" + std::to_string(bits);
    const TrialReport report = run_trial(layout, gradient, 1, 1, {.compressor = spec});
    const std::span<const float> decoded = report.mean;
    result.casq_bits.push_back(report.total.bits_per_element.value_or(0));
    result.casq_error.push_back(ratio(energy_of_difference(gradient, decoded), result.energy));
    for (std::size_t p = 0; p < result.parameters.size(); ++p) {
      InspectedParameter& parameter = result.parameters[p];
      const auto part = decoded.subspan(layout.offset(p), parameter.statistics.elements);
      const auto values = gradient.subspan(layout.offset(p), parameter.statistics.elements);
      parameter.casq_error.push_back(ratio(energy_of_difference(values, part), parameter.energy));
      const auto first = part.first(std::min(kChunk, part.size()));
      const std::set<float> centres(first.begin(), first.end());
      parameter.centres.emplace_back(centres.begin(), centres.end());
    }
  }
  for (const double rate : kInspectedRates) result.rates.push_back(inspect_rate(layout, gradient, result.energy, rate));
  return result;
}

}  // namespace thinwire::tool
