#include "reducer/step.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compressors/shared/message.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::uint16_t kBfloat16Nan = 0x7fc0, kFloat16Nan = 0x7e00;

void fill_part(const GradientSpan& gradient) {
  if (gradient.is_float()) {
    std::ranges::fill(gradient.floats(), std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const std::span halves(reinterpret_cast<std::uint16_t*>(gradient.bytes.data()), gradient.size());
  std::ranges::fill(halves, gradient.type == ElementType::kBfloat16 ? kBfloat16Nan : kFloat16Nan);
}

// Calls body(first, count, thread) for parts of a gradient.
template <class Body>
void for_each_part_of(const GradientSpan& gradient, ThreadPool& threads, const Body& body) {
  const std::uint64_t elements = gradient.size();
  threads.for_each((elements + kChunkElements - 1) / kChunkElements, elements, [&](std::size_t part, std::size_t thread) {
    const std::uint64_t first = part * kChunkElements;
    body(first, std::min(kChunkElements, elements - first), thread);
  });
}

}  // namespace

void fill_with_nan(const ParameterGradient& gradient, ThreadPool& threads) {
  const GradientSpan all(gradient.type, gradient.data);
  for_each_part_of(all, threads, [&](std::uint64_t first, std::uint64_t count, std::size_t) { fill_part(all.part(first, count)); });
}

void Step::plan(std::span<const ParameterGradient> gradients, bool shared, const StepGround& ground) {
  for (const auto& [spec, chosen] : ground.policy.made()) {
    memories_.clear();
    const auto add = [&](std::size_t parameter) {
      if (&ground.policy.compressor_of(parameter) == &chosen && ground.slots[parameter].memory)
        memories_.push_back(ground.slots[parameter].memory.get());
    };
    if (shared)
      for (std::size_t parameter = 0; parameter < ground.slots.size(); ++parameter) add(parameter);
    else
      for (const ParameterGradient& gradient : gradients) add(gradient.parameter);
    if (!memories_.empty()) chosen.compressor->plan_step(memories_);
  }
}

void Step::enter(std::span<const ParameterGradient> gradients, bool shared, const StepGround& ground) {
  const std::lock_guard lock(mutex_);
  for (const ParameterGradient& gradient : gradients)
    if (ground.slots[gradient.parameter].in_step)
      throw ArgumentError("parameter '" + ground.layout.parameters()[gradient.parameter].name +
                          "' was reduced in this step already; end_step() comes first");
  if (entered_.empty()) plan(gradients, shared, ground);
  for (const ParameterGradient& gradient : gradients) {
    ground.slots[gradient.parameter].in_step = true;
    entered_.push_back(gradient.parameter);
  }
}

void Step::add(std::span<const ParameterGradient> gradients, double loss_scale) {
  const std::lock_guard lock(mutex_);
  for (const ParameterGradient& gradient : gradients) reduced_.push_back({gradient, loss_scale});
}

void Step::deliver(std::span<const ParameterGradient> gradients) {
  const std::lock_guard lock(mutex_);
  delivered_.insert(delivered_.end(), gradients.begin(), gradients.end());
}

void Step::fail() {
  const std::lock_guard lock(mutex_);
  failed_ = true;
}

void Step::commit(ParameterSlot& slot) {
  if (!slot.next.empty()) std::swap(slot.residual, slot.next);
  if (slot.memory) slot.memory->commit_step();
  ++slot.steps;
}

// What was sent is not lost: over all workers, W times the mean is what they no longer hold.
void Step::return_mean(const Reduced& reduced, const StepGround& ground) {
  ParameterSlot& slot = ground.slots[reduced.gradient.parameter];
  const GradientSpan mean(reduced.gradient.type, reduced.gradient.data);
  const ChosenCompressor& chosen = ground.policy.compressor_of(reduced.gradient.parameter);
  if (chosen.feedback && !ground.keeps_old_residual(chosen))
    for_each_part_of(mean, ground.threads, [&](std::uint64_t first, std::uint64_t count, std::size_t) {
      const auto residual = std::span(slot.residual).subspan(first, count);
      read_values(mean.part(first, count), static_cast<float>(1.0 / reduced.loss_scale), residual, residual);
    });
}

// No optimizer uses it then.
void Step::spoil(const ParameterGradient& gradient) {
  const GradientSpan mean(gradient.type, gradient.data);
  if (mean.size() > 0) fill_part(mean.part(0, 1));
}

bool Step::finish(const StepGround& ground) {
  const std::lock_guard lock(mutex_);
  const bool committed = !failed_;
  for (const Reduced& reduced : reduced_) {
    if (committed)
      commit(ground.slots[reduced.gradient.parameter]);
    else
      return_mean(reduced, ground);
    if (!committed && !ground.keeps_old_residuals) spoil(reduced.gradient);
  }
  if (!committed && !ground.keeps_old_residuals) std::ranges::for_each(delivered_, spoil);
  for (const std::uint32_t parameter : entered_) ground.slots[parameter].in_step = false;
  failed_ = false;
  entered_.clear();
  reduced_.clear();
  delivered_.clear();
  return committed;
}

}  // namespace thinwire
