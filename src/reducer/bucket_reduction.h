// One bucket's reduction as an exchange: prepare, then message by message; commit when all messages have come.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/context.h"
#include "core/exchange.h"
#include "core/scratch.h"
#include "reducer/host_memory.h"
#include "reducer/plan.h"
#include "reducer/step.h"
#include "thinwire/reducer.h"

namespace thinwire {

// Memory that the reductions of one lane use, one after another.
struct Lane {
  bool busy = false;
  Scratch scratch;
  std::vector<ParameterGradient> gradients;  // of a bucket
  std::vector<std::uint32_t> parameters;
  std::vector<Piece> pieces;        // of all the bucket's messages
  std::vector<Work> works;          // one for each message,
  std::vector<Exchange> exchanges;  // and how far it has come
  Step own_step;                    // of reductions outside of any other step
  // On two levels, where `gradients` are of this worker's part:
  std::vector<ParameterGradient> whole;
  Scratch host_scratch;
  HostMemory host_memory;
};

// What a reduction needs to know; all of it outlives the exchange.
struct BucketReduction {
  const StepGround& ground;
  const BucketPlan& plan;
  Lane& lane;  // its gradients are this bucket's entries
  Step& step;  // lane.own_step, or the one at hand
  Context& context;
  Counters& counters;
  double loss_scale;
  int measure_every;
};

Exchange reduce_bucket(BucketReduction bucket);

}  // namespace thinwire
