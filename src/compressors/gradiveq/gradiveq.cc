#include "compressors/gradiveq/gradiveq.h"

#include "compressors/gradiveq/basis_agreement.h"
#include "compressors/gradiveq/gradiveq_message.h"
#include "compressors/gradiveq/staged_pieces.h"

namespace thinwire {

Gradiveq::Gradiveq(const GradiveqOptions& options, bool flush, std::unique_ptr<const Compressor> next)
    : options_(options), flush_(flush), next_(std::move(next)) {}

std::uint64_t Gradiveq::slice_elements(const Parameter& parameter) const { return piece_elements(parameter, options_); }

std::unique_ptr<CompressorMemory> Gradiveq::make_memory(const Parameter& parameter, std::uint64_t /*chunk*/) const {
  return std::make_unique<GradiveqCycle>(parameter, options_, next_.get(), background_);
}

void Gradiveq::plan_step(std::span<CompressorMemory*> memories) const {
  if (next_) plan_carriers(*next_, memories);
}

Exchange Gradiveq::prepare(std::span<const ParameterView* const> parameters, Context& context) const {
  const auto cycles = context.scratch().take<GradiveqCycle*>(parameters.size());
  for (std::size_t i = 0; i < cycles.size(); ++i) cycles[i] = static_cast<GradiveqCycle*>(&parameters[i]->memory());
  return agree_on_bases(cycles, context);
}

Exchange Gradiveq::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  GradiveqMessage message({options_.schedule, flush_, next_ != nullptr}, work, context);
  message.encode();
  if (!message.sums().empty()) {
    Await sums = context.sum(message.sums());
    co_await sums;
    context.any_non_finite = !message.sums_arrived();
    if (context.any_non_finite) co_return;
  }
  if (!message.norms().empty()) {
    Await norms = context.max(message.norms());
    co_await norms;
    context.any_non_finite = !message.norms_arrived();
    if (context.any_non_finite) co_return;
    message.round_coefficients();
    Await levels = context.sum(message.words());
    co_await levels;
  }
  if (message.has_stage()) {
    Work staged = message.stage_work();
    Exchange coefficients = next_->exchange(staged, context);
    co_await coefficients;
    if (context.any_non_finite) co_return;
    message.stage_arrived(staged);
  }
  context.enter(Phase::kDecode);
  context.any_non_finite = !message.means_fit();
  if (context.any_non_finite) co_return;
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  message.commit_all();
}

}  // namespace thinwire
