// A randomised trial of whole steps: any compressor, any number of workers and buckets, steps of which parts are not finite, unused,
// or broken off, with and without the old residuals kept. What a step must leave behind is checked after every one of them.
//
// All workers live in one thread and go from collective to collective together, so that a trial is its seed's alone.
#pragma once

#include <cstdint>
#include <string>

namespace thinwire::testing {

struct StepTrialResult {
  std::string description;  // of what was tried
  std::string failure;      // empty: everything held
  int steps = 0;
  int failed_steps = 0;
};

StepTrialResult run_step_trial(std::uint64_t seed);

}  // namespace thinwire::testing
