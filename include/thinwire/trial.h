// A real exchange between workers that are threads of this process, with the figures that tell how good it was.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "thinwire/layout.h"
#include "thinwire/reducer.h"

namespace thinwire {

// Per worker and step; means over the workers.
struct TrialFigures {
  double rounds = 0;
  double setup_bytes = 0;
  double payload_bytes = 0;
  double second_bytes = 0;
  double traffic_bytes = 0;
  std::optional<double> bits_per_element;  // 8 payload_bytes / elements
  std::optional<double> nmse_mean;         // |decoded mean - exact mean|^2 / |exact mean|^2
  std::optional<double> nmse_worker;       // |input - decode of its first encoding|^2 / |input|^2
  double seconds = 0;
};

struct TrialReport {
  std::string compressor;  // canonical
  int workers = 0;
  std::uint64_t elements = 0;
  std::uint64_t steps = 0;
  TrialFigures total;                  // means over the steps; error figures are ratios of sums
  std::vector<TrialFigures> per_step;
  std::vector<float> mean;             // steps x elements: the decoded means
};

struct TrialOptions {
  std::string compressor = "casq:bits=2";
  std::vector<Rule> rules = {};
  std::uint64_t seed = 0;
  int threads = 1;  // of each worker
};

// gradients: steps x workers x layout.elements() floats. Throws ArgumentError; throws Error if the workers' means differ
// in any bit.
TrialReport run_trial(const Layout& layout, std::span<const float> gradients, int workers, std::uint64_t steps,
                      const TrialOptions& options);

}  // namespace thinwire
