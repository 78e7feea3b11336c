// Which gradient of a file a command looks at.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "thinwire/layout.h"

namespace thinwire::tool {

struct GradientChoice {
  std::string input;
  std::optional<std::string> layout;
  std::optional<std::uint64_t> step;
  std::uint64_t worker = 0;
};

// --input, --layout, --step and --worker. `choice` outlives the parsing.
void add_choice(CLI::App& app, GradientChoice& choice);

// One worker's gradients up to the chosen step, of which the last is finite.
struct ChosenGradient {
  Layout layout;
  std::uint64_t steps = 1;
  std::vector<float> values;  // steps x layout.elements()

  std::span<const float> last() const { return std::span(values).last(layout.elements()); }
};

// Throws Error.
ChosenGradient read_chosen(const GradientChoice& choice);

}  // namespace thinwire::tool
