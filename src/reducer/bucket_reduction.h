// One bucket's reduction as an exchange: prepare, then message by message; scan first, commit last.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/context.h"
#include "core/exchange.h"
#include "core/scratch.h"
#include "reducer/plan.h"
#include "thinwire/reducer.h"

namespace thinwire {

// What is kept of a parameter from step to step.
struct ParameterSlot {
  std::uint64_t steps = 0;
  std::vector<float> residual;  // empty until the first use, and always without feedback
  std::unique_ptr<CompressorMemory> memory;
};

// Memory that the reductions of one lane use, one after another.
struct Lane {
  bool busy = false;
  Scratch scratch;
  std::vector<ParameterGradient> gradients;
  std::vector<std::uint32_t> parameters;
  std::vector<Piece> pieces;
};

// What a reduction needs to know; all of it outlives the exchange.
struct BucketReduction {
  const Layout& layout;
  const BucketPlan& plan;
  std::span<ParameterSlot> slots;  // by parameter
  Lane& lane;                      // its gradients are this bucket's entries
  Context& context;
  Counters& counters;
  double loss_scale;
  int measure_every;
};

Exchange reduce_bucket(BucketReduction bucket);

}  // namespace thinwire
