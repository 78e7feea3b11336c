// Runs a test on every SIMD target of this machine.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kernels/targets.h"

namespace thinwire::kernels {

class EveryTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { force_target(GetParam()); }
  void TearDown() override { force_target(""); }
};

inline auto all_targets() { return testing::ValuesIn(available_targets()); }
inline std::string target_name(const testing::TestParamInfo<std::string>& info) { return info.param; }

}  // namespace thinwire::kernels
