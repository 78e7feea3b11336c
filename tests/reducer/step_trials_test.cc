// Whole steps at random (step_trials.h). A million of them: build/tests/reducer/step_trials 1000000
#include <gtest/gtest.h>

#include "reducer/step_trials.h"
#include "sanitized.h"

namespace thinwire::testing {
namespace {

TEST(StepTrials, SomeThousandStepsLeaveBehindWhatTheyMust) {
  constexpr std::uint64_t kSeeds = kSanitized ? 150 : 1500;
  int steps = 0, failed = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const StepTrialResult result = run_step_trial(seed);
    EXPECT_EQ(result.failure, "") << "seed " << seed << ": " << result.description;
    steps += result.steps;
    failed += result.failed_steps;
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(failed, steps / 20) << "a trial in which no step fails tries nothing";
}

}  // namespace
}  // namespace thinwire::testing
