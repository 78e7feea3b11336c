#include "compressors/quantizers/half.h"

#include <algorithm>
#include <atomic>

#include "compressors/shared/averaging.h"
#include "compressors/shared/reduce_coded.h"
#include "compressors/shared/row.h"
#include "kernels/half.h"

namespace thinwire {

struct Half::Format {
  decltype(kernels::to_bf16)* to;
  decltype(kernels::from_bf16)* from;
  decltype(kernels::subtract_bf16)* subtract;
  decltype(kernels::scan_bf16)* scan;
  std::uint16_t one;
};

Half::Half(std::uint8_t wire_id, ElementType type) : type_(type), to_owners_(wire_id, type) {
  static constexpr Format kBf16{kernels::to_bf16, kernels::from_bf16, kernels::subtract_bf16, kernels::scan_bf16, 0x3f80};
  static constexpr Format kFp16{kernels::to_fp16, kernels::from_fp16, kernels::subtract_fp16, kernels::scan_fp16, 0x3c00};
  format_ = type == ElementType::kBfloat16 ? &kBf16 : &kFp16;
}

bool Half::means_fit(std::span<const std::uint16_t> means, const Work& work, Context& context) const {
  std::atomic<bool> fit = true;
  for_each_part(means.size(), context, [&](std::size_t first, std::size_t count, std::size_t) {
    const kernels::Scan scan = format_->scan(means.subspan(first, count));
    if (!scan.finite || !fits(work, static_cast<double>(scan.largest))) fit.store(false, std::memory_order_relaxed);
  });
  return fit;
}

// Floats without residuals: nothing between gradient and halves, and means are looked at as they are written. What is not finite
// stays so in the sum.
Exchange Half::exchange_plain(Work& work, Context& context) const {
  const auto halves = context.scratch().take<std::uint16_t>(work.elements);
  for_each_piece(work, context, [&](const Piece& piece, std::size_t, std::size_t) {
    format_->to(piece.gradient.floats(), 1.0f / static_cast<float>(context.world_size()), halves.subspan(piece.offset, piece.elements()));
  });
  Await round = context.sum(halves, type_);
  co_await round;

  context.enter(Phase::kDecode);
  context.any_non_finite = !all_pieces(context, work, [&](std::size_t i, std::size_t) {
    const Piece& piece = work.pieces[i];
    format_->from(halves.subspan(piece.offset, piece.elements()), 1.0f, piece.gradient.floats());
    return holds_mean(work, piece.gradient.floats());
  });
  if (context.any_non_finite) co_return;
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
}

Exchange Half::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  if (work.direction != Direction::kToAll) {
    Exchange by_owners = exchange_by_owners(to_owners_, work, context);
    co_await by_owners;
    co_return;
  }
  const bool all_floats = std::ranges::all_of(work.pieces, [](const Piece& piece) { return piece.gradient.is_float(); });
  if (all_floats && !work.feedback && !work.measured) {
    Exchange plain = exchange_plain(work, context);
    co_await plain;
    co_return;
  }
  const auto workers = static_cast<float>(context.world_size());
  const std::size_t longest = longest_piece(work);
  const auto buffers = context.scratch().take<float>(longest * context.threads().threads());
  Head head(work, context.scratch());
  const auto message = context.scratch().take<std::uint16_t>(work.elements + (work.feedback ? head.numbers() : 0));
  const auto halves = message.first(work.elements), news = message.subspan(work.elements);
  for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
    const auto values = buffers.subspan(thread * longest, piece.elements());
    head.note(i, read_values(piece, work, values));
    format_->to(values, 1.0f / workers, halves.subspan(piece.offset, piece.elements()));
  });
  if (work.feedback) head.write(news, format_->one);
  Await round = context.sum(message, type_);
  co_await round;

  context.enter(Phase::kDecode);
  if (work.feedback) head.read<std::uint16_t>(news);
  if (!head.finite() || !means_fit(halves, work, context)) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  const CommitRooms rooms(work, context);
  const auto own_halves = context.scratch().take<std::uint16_t>(buffers.size());
  for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
    if (head.is_skipped(i)) return skip(piece);
    const CommitRoom room = rooms.read(work, i, thread);
    if (!room.left.empty()) {
      const auto own = own_halves.subspan(thread * longest, piece.elements());
      format_->to(room.left, 1.0f / workers, own);
      format_->subtract(own, workers, room.left);
    }
    format_->from(halves.subspan(piece.offset, piece.elements()), 1.0f, room.mean);
    commit(work, i, room);
  });
}

namespace {

constexpr std::uint8_t kBf16 = 2, kFp16 = 3;  // wire ids

// The engine rounds sums of halves, which no residual sees.
Claims bf16_claims(const SpecValues& /*values*/, Claims claims) {
  claims.rounding = 1.0 / 128;
  return claims;
}

Claims fp16_claims(const SpecValues& /*values*/, Claims claims) {
  claims.rounding = 1.0 / 1024;
  claims.smallest = 1e-4;
  claims.largest = 65504;
  return claims;
}

Row half_row(const char* name, const char* description, std::uint8_t wire_id, ElementType type) {
  Row row;
  row.info = {.name = name,
              .family = Family::kFloats,
              .description = description,
              .bits = "16",
              .wire_id = wire_id,
              .aggregation = Aggregation::kLinear,
              // Beyond 65504 binary16 is infinite, and what is below its least value becomes 0.
              .contractive = type == ElementType::kBfloat16,
              .reference = type == ElementType::kBfloat16 ? "Kalamkar et al., arXiv 1905.12322" : "IEEE 754-2008, binary16"};
  row.info.parameters = {feedback("off")};
  row.make =
      type == ElementType::kBfloat16
          ? [](const SpecValues&, MadeCompressor) -> MadeCompressor { return std::make_unique<Half>(kBf16, ElementType::kBfloat16); }
          : [](const SpecValues&, MadeCompressor) -> MadeCompressor { return std::make_unique<Half>(kFp16, ElementType::kFloat16); };
  row.claims = type == ElementType::kBfloat16 ? bf16_claims : fp16_claims;
  return row;
}

}  // namespace

Row bf16_row() {
  return half_row("bf16", "bfloat16: values rounded to 8 exponent and 7 fraction bits, summed", kBf16, ElementType::kBfloat16);
}

Row fp16_row() {
  return half_row("fp16", "binary16: values rounded to 5 exponent and 10 fraction bits, divided first, summed", kFp16,
                  ElementType::kFloat16);
}

}  // namespace thinwire
