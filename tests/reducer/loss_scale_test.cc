// A loss scale is the script's, and not the gradient's: whatever a row does and remembers, and with or without residuals, means under a loss
// scale that changes from step to step are those without one, times it.
#include <gtest/gtest.h>

#include "reducer/row_specs.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

std::vector<std::string> specs() {
  std::vector<std::string> all;
  for (const Row& row : rows()) {
    if (row.info.name == "fp16") continue;  // what its range loses is what a loss scale is for
    const std::string beginning = beginning_of(row);
    all.push_back(finished(beginning));
    if (is_allowed(beginning + "feedback=off")) all.push_back(beginning + "feedback=off");
    for (const std::string& settings : row.trials.further)
      if (is_allowed(further_spec(row, settings + ",feedback=off"))) all.push_back(further_spec(row, settings + ",feedback=off"));
  }
  return all;
}

class LossScale : public ::testing::TestWithParam<std::string> {};

TEST_P(LossScale, OfPowersOfTwoDoesNotShow) {
  const Layout layout({{"matrix", {96, 70}}, {"further", {5000}}});
  const ReducerOptions options{.compressor = GetParam(), .small_uncompressed = false, .keep_old_residuals = true};
  Workers plain(layout, 3, options), scaled(layout, 3, options);
  for (unsigned number = 0; number < 6; ++number) {
    const float scale = number % 3 == 0 ? 65536.0f : number % 3 == 1 ? 1024.0f : 0.25f;
    Gradients expected = make_gradients("normal", 3, layout.elements(), number), means = expected;
    for (auto& gradient : means)
      for (float& value : gradient) value *= scale;
    plain.step(expected);
    scaled.step(means, {0}, static_cast<double>(scale));
    for (auto& gradient : means)
      for (float& value : gradient) value /= scale;
    ASSERT_EQ(expected, means) << "step " << number;
    for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(plain.residual(rank), scaled.residual(rank)) << "step " << number;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, LossScale, ::testing::ValuesIn(specs()));

}  // namespace
}  // namespace thinwire::testing
