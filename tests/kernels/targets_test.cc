#include "kernels/targets.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/every_target.h"
#include "sanitized.h"

namespace thinwire::kernels {
namespace {

class TargetsTest : public EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, TargetsTest, all_targets(), target_name);

TEST_P(TargetsTest, ForcedTargetIsInUse) { EXPECT_EQ(current_target(), GetParam()); }

TEST_P(TargetsTest, EmptyNameReturnsToTheBest) {
  force_target("");
  EXPECT_EQ(current_target(), available_targets().front());
}

TEST_P(TargetsTest, UnknownNameThrowsAndChangesNothing) {
  EXPECT_THROW(force_target("AVX9"), std::invalid_argument);
  EXPECT_EQ(current_target(), GetParam());
}

TEST(AvailableTargetsTest, IncludeAPortableOneAndStayTheSameWhenOneIsForced) {
  const std::vector<std::string> targets = available_targets();
  EXPECT_TRUE(testing::kSanitized || targets.back() == "SCALAR" || targets.back() == "EMU128") << targets.back();
  force_target(targets.back());
  EXPECT_EQ(available_targets(), targets);
  force_target("");
}

#ifdef __x86_64__
TEST(AvailableTargetsTest, OnX86ThereIsMoreThanThePortableOne) {
  const std::vector<std::string> targets = available_targets();
  for (const char* name : {"AVX2", "SSE4"}) {
    const bool runs = std::string(name) == "AVX2" ? __builtin_cpu_supports("avx2") : __builtin_cpu_supports("sse4.2");
    const bool compiled = !testing::kSanitized || name == std::string("AVX2");  // src/kernels/CMakeLists.txt
    EXPECT_EQ(std::count(targets.begin(), targets.end(), name), runs && compiled ? 1 : 0) << name;
  }
}
#endif

}  // namespace
}  // namespace thinwire::kernels
