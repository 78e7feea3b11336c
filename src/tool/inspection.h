// A gradient inspected: its parameters' statistics, and what CASQ's clusters make of them.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "thinwire/layout.h"
#include "tool/gradient_statistics.h"

namespace thinwire::tool {

inline constexpr int kInspectedBits = 4;  // 1 to 4

struct InspectedParameter {
  std::string name;
  std::vector<std::int64_t> shape;
  GradientStatistics statistics;
  double energy = 0;                                 // sum of squares
  std::vector<std::optional<double>> casq_error;     // share of the energy that casq:bits=1, 2, ... loses
  std::vector<std::vector<float>> centres;           // what its first chunk's clusters decode to, for the same bits
};

// What casq:rate=`rate` takes and loses, once it has found its step.
struct InspectedRate {
  double rate = 0;
  double bits = 0;  // true bits an element
  std::optional<double> error;
};
inline constexpr std::array<double, 7> kInspectedRates = {0.05, 0.1, 0.25, 0.5, 1, 2, 3};

struct Inspection {
  std::vector<InspectedParameter> parameters;
  GradientStatistics all;
  double energy = 0;
  std::vector<std::optional<double>> casq_error;
  std::vector<double> casq_bits;  // true bits an element
  std::vector<InspectedRate> rates;
};

// gradient: layout.elements() finite floats.
Inspection inspect(const Layout& layout, std::span<const float> gradient);

// One page without anything from elsewhere. `title` is text, not HTML.
std::string inspection_page(const Inspection& inspection, const std::string& title);

}  // namespace thinwire::tool
