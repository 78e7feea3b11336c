// A step succeeds or fails as a whole: all reductions between an optimizer's update and the next.
#pragma once

#include <mutex>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "reducer/policy.h"
#include "reducer/slot.h"
#include "thinwire/reducer.h"

namespace thinwire {

// What steps need to know of their reducer, which outlives them.
struct StepGround {
  const Layout& layout;
  const Policy& policy;
  std::span<ParameterSlot> slots;  // by parameter
  ThreadPool& threads;
  bool keeps_old_residuals;
  std::span<const std::uint32_t> owners;  // by parameter; empty: every worker gets every mean
  Direction direction;

  // Of a parameter that travels so: the new residual is written beside the old one.
  bool keeps_old_residual(const ChosenCompressor& chosen) const {
    return chosen.feedback && (keeps_old_residuals || chosen.compressor->keeps_old_residual());
  }
};

class Step {
 public:
  // Parameters that a reduction is about to average. Throws ArgumentError if one of them was in this step before. The first to enter
  // lets compressors plan the step: of all parameters if it is `shared` by several reductions, else of these.
  void enter(std::span<const ParameterGradient> gradients, bool shared, const StepGround& ground);
  // A reduction is done; its gradients hold means.
  void add(std::span<const ParameterGradient> gradients, double loss_scale);
  // What an optimizer gets of that, where the reduction's gradients are other memory.
  void deliver(std::span<const ParameterGradient> gradients);
  // Some worker's values were not finite, or a reduction ended early.
  void fail();

  // Not while reductions are in flight. Commits residuals, memories and counts if nothing has failed. Else drops them: where old
  // residuals are kept they stay; where not, means go back into the residuals, and an element of each becomes NaN. Returns
  // whether it was committed; then begins anew.
  bool finish(const StepGround& ground);

 private:
  struct Reduced {
    ParameterGradient gradient;
    double loss_scale;
  };
  void plan(std::span<const ParameterGradient> gradients, bool shared, const StepGround& ground);
  static void commit(ParameterSlot& slot);
  static void return_mean(const Reduced& reduced, const StepGround& ground);
  static void spoil(const ParameterGradient& gradient);

  std::mutex mutex_;
  bool failed_ = false;
  std::vector<std::uint32_t> entered_;
  std::vector<Reduced> reduced_;
  std::vector<ParameterGradient> delivered_;
  std::vector<CompressorMemory*> memories_;  // room for plan()
};

// Every element becomes NaN.
void fill_with_nan(const ParameterGradient& gradient, ThreadPool& threads);

}  // namespace thinwire
