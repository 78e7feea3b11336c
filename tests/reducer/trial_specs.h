// Every compressor that a trial may take: all rows with all their choices, and all pairs of stages that are allowed.
#pragma once

#include <string>
#include <vector>

namespace thinwire::testing {

struct TrialSpec {
  std::string text;
  bool feedback = false;
  bool conserves = false;  // sum of inputs = W mean + sum of residuals
  double rounding = 0;     // to how much of the largest value
};

const std::vector<TrialSpec>& trial_specs();

}  // namespace thinwire::testing
