#include "compressors/quantizers/none.h"

#include <algorithm>
#include <atomic>

#include "compressors/quantizers/float_codec.h"
#include "compressors/shared/head.h"
#include "compressors/shared/message.h"
#include "compressors/shared/reduce_coded.h"
#include "compressors/shared/row.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kWireId = 1;

// Whether the pieces' gradients are floats one behind the other, as they are in a bucket of which nothing is exempt.
bool is_contiguous(std::span<const Piece> pieces) {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (!pieces[i].gradient.is_float()) return false;
    if (i > 0 && pieces[i - 1].gradient.bytes.data() + pieces[i - 1].gradient.bytes.size() != pieces[i].gradient.bytes.data()) return false;
  }
  return true;
}

// Sums become means in the same pass that looks whether they can be stored.
bool divide_sums(std::span<float> sums, const Work& work, Context& context) {
  std::atomic<bool> fit = true;
  const float share = 1.0f / static_cast<float>(context.world_size());
  for_each_part(sums.size(), context, [&](std::size_t first, std::size_t count, std::size_t) {
    const kernels::Scan scan = kernels::scan_and_multiply(sums.subspan(first, count), share);
    if (!scan.finite || !fits(work, static_cast<double>(scan.largest) * static_cast<double>(share)))
      fit.store(false, std::memory_order_relaxed);
  });
  return fit;
}

Exchange sum_in_place(Work& work, Context& context) {
  const std::span<float> values(work.pieces.front().gradient.floats().data(), work.elements);
  Await round = context.sum(values);
  co_await round;
  context.enter(Phase::kDecode);
  if (!divide_sums(values, work, context)) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
}

}  // namespace

Exchange None::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  if (work.direction != Direction::kToAll) {
    static const FloatCodec codec(kWireId, ElementType::kFloat32);
    Exchange by_owners = exchange_by_owners(codec, work, context);
    co_await by_owners;
    co_return;
  }
  if (!work.feedback && !work.measured && is_contiguous(work.pieces)) {
    Exchange in_place = sum_in_place(work, context);
    co_await in_place;
    co_return;
  }
  Head head(work, context.scratch());
  // Without residuals nobody asks what was used, and a NaN stays one in the sum.
  const auto message = context.scratch().take<float>(work.elements + (work.feedback ? head.numbers() : 0));
  const auto values = message.first(work.elements), news = message.subspan(work.elements);
  for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t) {
    const kernels::Opened opened = read_values(piece, work, values.subspan(piece.offset, piece.elements()));
    head.note(i, opened);
    if (work.measured) work.report.energies[i] = static_cast<double>(opened.sum.sum_squares);
  });
  if (work.feedback) head.write(news, 1.0f);
  Await round = context.sum(message);
  co_await round;

  context.enter(Phase::kDecode);
  if (work.feedback) head.read<float>(news);
  if (!head.finite() || !divide_sums(values, work, context)) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t) {
    if (head.is_skipped(i)) return skip(piece);
    commit_lossless(work, i, values.subspan(piece.offset, piece.elements()));
  });
}

Row none_row() {
  Row row;
  row.info = {.name = "none",
              .family = Family::kFloats,
              .description = "no compression: float32 values, summed",
              .bits = "32",
              .wire_id = kWireId,
              .aggregation = Aggregation::kLinear,
              .lossless = true,
              .unbiased = true,
              .contractive = true,
              .reference = "ring all-reduce: Patarasuk and Yuan, JPDC 69, 2009"};
  row.make = [](const SpecValues&, MadeCompressor) -> MadeCompressor { return std::make_unique<None>(); };
  return row;
}

}  // namespace thinwire
