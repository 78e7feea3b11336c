// What is kept of a parameter from step to step.
#pragma once

#include <cstdint>
#include <memory>

#include "core/aligned.h"
#include "core/work.h"

namespace thinwire {

struct ParameterSlot {
  std::uint64_t steps = 0;      // committed
  AlignedFloats residual;       // empty until the first use, and always without feedback
  AlignedFloats next;           // where the old residual is kept: what becomes it once the step is committed
  std::unique_ptr<CompressorMemory> memory;
  bool in_step = false;         // reduced in a step that has not ended
};

}  // namespace thinwire
