#include "compressors/half.h"

#include "compressors/message.h"
#include "kernels/half.h"

namespace thinwire {

struct Half::Format {
  decltype(kernels::to_bf16)* to;
  decltype(kernels::from_bf16)* from;
  decltype(kernels::subtract_bf16)* subtract;
  std::uint16_t not_a_number;
};

namespace {

// The part of a message's halves that belongs to a piece.
class Cut {
 public:
  explicit Cut(std::span<std::uint16_t> halves) : rest_(halves) {}
  std::span<std::uint16_t> next(const Piece& piece) {
    const auto part = rest_.first(piece.gradient.size());
    rest_ = rest_.subspan(piece.gradient.size());
    return part;
  }

 private:
  std::span<std::uint16_t> rest_;
};

}  // namespace

Half::Half(ElementType type) : type_(type) {
  static constexpr Format kBf16{kernels::to_bf16, kernels::from_bf16, kernels::subtract_bf16, 0x7fc0};
  static constexpr Format kFp16{kernels::to_fp16, kernels::from_fp16, kernels::subtract_fp16, 0x7e00};
  format_ = type == ElementType::kBfloat16 ? &kBf16 : &kFp16;
}

Exchange Half::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  auto halves = context.scratch().take<std::uint16_t>(work.elements);
  const auto workers = static_cast<float>(context.world_size());
  Cut to_encode(halves);
  for (Piece& piece : work.pieces) {
    const auto part = to_encode.next(piece);
    if (piece.has_residual()) open(piece, work);
    format_->to(piece.values(), 1.0f / workers, part);
    if (piece.has_residual()) format_->subtract(part, workers, piece.residual);
  }
  if (!context.finite) halves[0] = format_->not_a_number;
  Await round = context.sum(halves, type_);
  co_await round;

  context.enter(Phase::kDecode);
  // With a residual, means are decoded next to it, because gradient still holds what it may have to be put back to.
  Cut to_decode(halves);
  if (context.flag_needed) {
    auto means = context.scratch().take<float>(work.elements);
    format_->from(halves, 1.0f, means);
    if (flagged(means, context)) co_return;
  }
  for (Piece& piece : work.pieces) {
    format_->from(to_decode.next(piece), 1.0f, piece.mean());
    piece.stage = Piece::Stage::kDone;
  }
}

}  // namespace thinwire
