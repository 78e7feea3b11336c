// The SIMD targets that this build holds and this processor runs (Highway's names: AVX3, AVX2, SSE4, EMU128, ...).
#pragma once

#include <string>
#include <vector>

namespace thinwire::kernels {

// Best first.
std::vector<std::string> available_targets();
// The target in use.
std::string current_target();
// Tests and benchmarks: use this target from now on, in all threads; "" returns to the best one. Throws
// std::invalid_argument for a name that is not in available_targets().
void force_target(const std::string& name);

}  // namespace thinwire::kernels
