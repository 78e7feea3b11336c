#include "compressors/quantizers/half.h"

#include <atomic>

#include "compressors/shared/message.h"
#include "kernels/half.h"

namespace thinwire {

struct Half::Format {
  decltype(kernels::to_bf16)* to;
  decltype(kernels::from_bf16)* from;
  decltype(kernels::subtract_bf16)* subtract;
  std::uint16_t one;
  std::uint16_t not_a_number;
};

namespace {

// A message: every piece's values, then with feedback a mark a piece, 1 if this worker used it. Where the sum of the marks
// is 0, nobody did, and the residual waits.
class Halves {
 public:
  Halves(const Work& work, Context& context) : elements_(work.elements), has_marks_(work.feedback) {
    all_ = context.scratch().take<std::uint16_t>(elements_ + (has_marks_ ? work.pieces.size() : 0));
  }

  std::span<std::uint16_t> all() const { return all_; }
  bool has_marks() const { return has_marks_; }
  std::uint16_t& mark(std::size_t piece) const { return all_[elements_ + piece]; }
  std::span<std::uint16_t> of(const Piece& piece) const { return all_.subspan(piece.offset, piece.gradient.size()); }

 private:
  std::uint64_t elements_;
  bool has_marks_;
  std::span<std::uint16_t> all_;
};

}  // namespace

Half::Half(ElementType type) : type_(type) {
  static constexpr Format kBf16{kernels::to_bf16, kernels::from_bf16, kernels::subtract_bf16, 0x3f80, 0x7fc0};
  static constexpr Format kFp16{kernels::to_fp16, kernels::from_fp16, kernels::subtract_fp16, 0x3c00, 0x7e00};
  format_ = type == ElementType::kBfloat16 ? &kBf16 : &kFp16;
}

// Values divided by the world size, so that the sum of all workers' is the mean and fp16 does not overflow.
void Half::encode(Piece& piece, float workers, std::span<std::uint16_t> part) const {
  format_->to(piece.values(), 1.0f / workers, part);
  if (piece.has_residual()) format_->subtract(part, workers, piece.residual);
}

bool Half::is_finite(std::span<const std::uint16_t> sums, Context& context) const {
  const auto floats = context.scratch().take<float>(context.threads().threads() * kChunkElements);
  std::atomic<bool> finite = true;
  for_each_part(sums.size(), context, [&](std::size_t first, std::size_t count, std::size_t thread) {
    const auto part = floats.subspan(thread * kChunkElements, count);
    format_->from(sums.subspan(first, count), 1.0f, part);
    if (!kernels::scan(part).finite) finite = false;
  });
  return finite;
}

Exchange Half::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  const Halves halves(work, context);
  for_each_piece(work, context, [&](Piece& piece, std::size_t i) {
    if (piece.has_residual()) open(piece, work);
    if (halves.has_marks()) halves.mark(i) = piece.used ? format_->one : 0;
    encode(piece, static_cast<float>(context.world_size()), halves.of(piece));
  });
  if (!context.finite) halves.all()[0] = format_->not_a_number;
  Await round = context.sum(halves.all(), type_);
  co_await round;

  context.enter(Phase::kDecode);
  // Everything is looked at before a mean is written: gradients still hold what residuals may have to be put back to.
  if (context.flag_needed && !is_finite(halves.all(), context)) context.any_non_finite = true;
  if (context.any_non_finite) co_return;
  for_each_piece(work, context, [&](Piece& piece, std::size_t i) {
    if (halves.has_marks() && halves.mark(i) == 0) {
      skip(piece);
    } else {
      format_->from(halves.of(piece), 1.0f, piece.mean());
      piece.stage = Piece::Stage::kDone;
    }
  });
}

}  // namespace thinwire
