#include "compressors/shared/message.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "kernels/committing.h"
#include "kernels/rows.h"
#include "kernels/statistics.h"

namespace thinwire {
namespace {

std::span<std::uint16_t> halves_of(const GradientSpan& gradient) {
  return {reinterpret_cast<std::uint16_t*>(gradient.bytes.data()), gradient.size()};
}

void store(std::span<const float> mean, float gradient_scale, std::span<const float> left, const GradientSpan& gradient,
           std::span<float> residual, bool past_caches = false) {
  const float factor = 1.0f / gradient_scale;
  switch (gradient.type) {
    case ElementType::kBfloat16:
      return kernels::commit_bf16(mean, factor, left, halves_of(gradient), residual);
    case ElementType::kFloat16:
      return kernels::commit_fp16(mean, factor, left, halves_of(gradient), residual);
    default:
      if (mean.empty()) return kernels::commit_past_caches({}, factor, left, {}, residual);
      if (factor == 1 && mean.data() == gradient.floats().data() && left.data() == residual.data()) return;
      if (past_caches && mean.data() != gradient.floats().data())
        return kernels::commit_past_caches(mean, factor, left, gradient.floats(), residual);
      return kernels::commit(mean, factor, left, gradient.floats(), residual);
  }
}

void store(const Work& work, const Piece& piece, std::span<const float> mean, std::span<const float> left) {
  store(mean, work.gradient_scale, left, piece.gradient, piece.next_residual, work.elements >= kPastCaches);
}

}  // namespace

kernels::Opened read_values(const GradientSpan& gradient, float scale, std::span<const float> residual, std::span<float> values) {
  switch (gradient.type) {
    case ElementType::kBfloat16:
      return kernels::open_bf16(halves_of(gradient), scale, residual, values);
    case ElementType::kFloat16:
      return kernels::open_fp16(halves_of(gradient), scale, residual, values);
    default:
      return kernels::open(gradient.floats(), scale, residual, values);
  }
}

kernels::Opened read_values(const Piece& piece, const Work& work, std::span<float> values) { return read_values(piece, work, 0, values); }

kernels::Opened read_values(const Piece& piece, const Work& work, std::size_t first, std::span<float> values) {
  const GradientSpan gradient = piece.gradient.part(first, values.size());
  if (piece.residual.empty()) return read_values(gradient, work.gradient_scale, {}, values);
  const auto residual = piece.residual.subspan(first, values.size());
  if (work.residual_decay == 1) return read_values(gradient, work.gradient_scale, residual, values);
  std::ranges::transform(residual, values.begin(), [&](float left) { return work.residual_decay * left; });
  return read_values(gradient, work.gradient_scale, values, values);
}

std::optional<kernels::Unopened> unopened(const Piece& piece, const Work& work) {
  if (!piece.gradient.is_float() || (work.residual_decay != 1 && !piece.residual.empty())) return std::nullopt;
  return kernels::Unopened{piece.gradient.floats(), work.gradient_scale, piece.residual};
}

Work with_gradients(const Work& work, std::span<float> values, Context& context) {
  const auto pieces = context.scratch().take<Piece>(work.pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Piece& piece = *std::construct_at(&pieces[i], work.pieces[i]);
    piece.gradient = values.subspan(piece.offset, piece.elements());
  }
  Work changed = work;
  changed.pieces = pieces;
  changed.gradient_scale = 1;
  return changed;
}

CommitRooms::CommitRooms(const Work& work, bool is_cold, Context& context) : past_caches_(is_cold && work.elements >= kPastCaches) {
  bool all_floats = true;
  for (const Piece& piece : work.pieces) all_floats = all_floats && piece.gradient.is_float();
  longest_ = longest_piece(work);
  const std::size_t room = longest_ * context.threads().threads();
  if (!all_floats || past_caches_) means_ = context.scratch().take<float>(room);
  if (work.measured && !work.feedback) lefts_ = context.scratch().take<float>(room);
}

CommitRoom CommitRooms::read(const Work& work, std::size_t i, std::size_t thread) const {
  const Piece& piece = work.pieces[i];
  CommitRoom room;
  if (work.feedback || work.measured) {
    room.left = piece.has_residual() ? piece.next_residual : own(lefts_, piece, thread);
    const kernels::Opened opened = read_values(piece, work, room.left);
    if (work.measured) work.report.energies[i] = static_cast<double>(opened.sum.sum_squares);
  }
  room.mean = mean(work, i, thread);
  return room;
}

std::span<float> CommitRooms::mean(const Work& work, std::size_t i, std::size_t thread) const {
  const Piece& piece = work.pieces[i];
  return piece.gradient.is_float() && !past_caches_ ? piece.gradient.floats() : own(means_, piece, thread);
}

std::span<float> CommitRooms::past_caches(const Work& work, std::size_t i) const {
  const GradientSpan& gradient = work.pieces[i].gradient;
  return past_caches_ && gradient.is_float() ? gradient.floats() : std::span<float>();
}

void commit(const Work& work, std::size_t i, const CommitRoom& room, std::span<const float> owed) {
  const Piece& piece = work.pieces[i];
  if (work.measured) work.report.errors[i] = kernels::squared_norm(room.left);
  if (!owed.empty()) kernels::add_scaled(room.left, owed, 1.0f);
  store(work, piece, room.mean, piece.has_residual() ? room.left : std::span<float>());
}

void commit_added(const Work& work, std::size_t i, std::span<const float> mean, std::span<const float> owed) {
  if (work.measured) work.report.errors[i] = 0;
  store(work, work.pieces[i], mean, owed);
}

void skip(const Piece& piece) {
  std::ranges::fill(piece.gradient.bytes, std::byte{0});
  if (piece.next_residual.data() != piece.residual.data()) std::ranges::copy(piece.residual, piece.next_residual.begin());
}

void commit_lossless(const Work& work, std::size_t i, std::span<const float> mean) {
  const Piece& piece = work.pieces[i];
  std::ranges::fill(piece.next_residual, 0.0f);
  store(work, piece, mean, piece.next_residual);
}

void store_mean(std::span<const float> mean, float gradient_scale, const GradientSpan& gradient, std::span<float> residual) {
  store(mean, gradient_scale, residual, gradient, residual);
}

std::size_t longest_piece(const Work& work) {
  std::size_t longest = 0;
  for (const Piece& piece : work.pieces) longest = std::max<std::size_t>(longest, piece.elements());
  return longest;
}

bool are_within(std::span<const float> values, double most, Context& context) {
  std::atomic<bool> within = true;
  for_each_part(values.size(), context, [&](std::size_t first, std::size_t count, std::size_t) {
    if (!within.load(std::memory_order_relaxed)) return;
    const kernels::Scan scan = kernels::scan(values.subspan(first, count));
    if (!scan.finite || static_cast<double>(scan.largest) > most) within.store(false, std::memory_order_relaxed);
  });
  return within;
}

bool sums_fit(std::span<const float> sums, const Work& work, Context& context) {
  return are_within(sums, context.world_size() * static_cast<double>(work.largest_mean), context);
}

}  // namespace thinwire
