#include "compressors/gradiveq/gradiveq_follow.h"

#include "compressors/gradiveq/blas_agreement.h"
#include "compressors/gradiveq/follow_message.h"
#include "compressors/gradiveq/followed_basis.h"
#include "compressors/gradiveq/staged_pieces.h"

namespace thinwire {

GradiveqFollow::GradiveqFollow(const FollowOptions& options, std::unique_ptr<const Compressor> next)
    : options_(options), next_(std::move(next)) {}

std::unique_ptr<CompressorMemory> GradiveqFollow::make_memory(const Parameter& parameter, std::uint64_t /*chunk*/) const {
  return std::make_unique<FollowedBasis>(parameter, options_);
}

Exchange GradiveqFollow::prepare(std::span<const ParameterView* const> /*parameters*/, Context& context) const {
  const auto fingerprint = context.scratch().take<std::int32_t>(2);
  write_blas_fingerprint(fingerprint);
  Await round = context.max(fingerprint);
  co_await round;
  check_blas_fingerprint(fingerprint);
}

Exchange GradiveqFollow::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  FollowMessage message(work, context, next_ != nullptr);
  message.project();
  if (!message.first().empty()) {
    Await first = context.sum(message.first());
    co_await first;
    context.any_non_finite = !message.first_arrived();
    if (context.any_non_finite) co_return;
  }
  if (!message.second().empty() && next_) {
    Work coefficients = message.stage_first();
    Exchange first = next_->exchange(coefficients, context);
    co_await first;
    if (context.any_non_finite) co_return;
    context.enter(Phase::kEncode);  // the stage had decoded
    message.probe();
    Work rest = message.stage_second();
    Exchange second = next_->exchange(rest, context);
    co_await second;
    if (context.any_non_finite) co_return;
  } else if (!message.second().empty()) {
    message.probe();
    Await second = context.sum(message.second());
    co_await second;
  }
  context.enter(Phase::kDecode);
  context.any_non_finite = !message.means_fit();
  if (context.any_non_finite) co_return;
  message.begin_bases();
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  message.commit_all();
}

}  // namespace thinwire
