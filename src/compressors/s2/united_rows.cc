#include "compressors/s2/united_rows.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "compressors/shared/message.h"
#include "compressors/quantizers/none.h"
#include "compressors/s2/s2_memory.h"
#include "kernels/rows.h"
#include "kernels/statistics.h"

namespace thinwire {
namespace {

constexpr double kClassesPerOctave = 4;
constexpr std::uint32_t kClasses = 128;

// Packed rows cost a pass more than the gradient as it is, so a sixteenth less is no gain.
bool is_dense(const RowSpace& space, const RowSet& rows) { return 16 * rows.elements() >= 15 * space.elements(); }

// The packed rows of one parameter, as a parameter of its own.
class PackedParameter : public ParameterView {
 public:
  PackedParameter(Parameter definition, CompressorMemory& memory, std::span<const float> gradient,
                  std::span<const float> residual, float scale)
      : definition_(std::move(definition)), memory_(memory), gradient_(gradient), residual_(residual), scale_(scale) {}

  const Parameter& definition() const override { return definition_; }
  CompressorMemory& memory() const override { return memory_; }
  void read(std::uint64_t first, std::span<float> values) const override {
    if (residual_.empty())
      std::ranges::copy(gradient_.subspan(first, values.size()), values.begin());
    else
      kernels::add_to_residual(gradient_.subspan(first, values.size()), scale_, residual_.subspan(first, values.size()), values);
  }

 private:
  Parameter definition_;
  CompressorMemory& memory_;
  std::span<const float> gradient_;
  std::span<const float> residual_;
  float scale_;
};

// Packed rows as the carrier's work. The gradient and the residual are copies: if the carrier fails, nothing has changed.
class Carried {
 public:
  Carried(const RowSpace& space, const RowSet& rows, const Work& work, Context& context)
      : space_(space), rows_(rows), outer_(work), context_(context), gradient_(context.scratch().take<float>(rows.elements())) {
    if (work.feedback || work.measured) residual_ = context.scratch().take<float>(rows.elements());
    pack();
    cut();
  }

  // Of the parameters that the carrier must see whole.
  std::vector<PackedParameter> views(const Compressor& carrier) const {
    std::vector<PackedParameter> result;
    for (std::size_t p = 0; p < space_.parts().size(); ++p) {
      const auto gradient = part(gradient_, p);
      const Piece& piece = *space_.parts()[p].piece;
      if (gradient.empty() || !memory_of(piece).carriers() || !carrier.needs_preparation(memory_of(piece).steps())) continue;
      result.emplace_back(Parameter{piece.definition->name, {static_cast<std::int64_t>(gradient.size())}},
                          *memory_of(piece).carriers(), gradient, part(residual_, p), outer_.gradient_scale);
    }
    return result;
  }

  Work& work() { return work_; }

  void commit() const {
    for_each_row(space_, rows_, context_, [&](const SparsePart& part, std::uint64_t r, std::uint64_t begin) {
      const std::uint64_t length = part.length(r);
      std::ranges::copy(gradient_.subspan(begin, length), part.row_of(part.piece->mean(), r).begin());
      if (part.piece->has_residual())
        std::ranges::copy(residual_.subspan(begin, length), part.row_of(part.piece->residual, r).begin());
    });
  }

  // The carrier's figures, by the pieces that they belong to. Residuals of rows that did not travel are no error of it.
  void report(Work& outer) const {
    if (!outer.measured) return;
    outer.first_error = work_.first_error ? *work_.first_error : residual_energy(work_, context_);
    std::size_t next = 0;
    for (const SparsePart& part : space_.parts()) {
      part.piece->energy = 0;
      for (; next < work_.pieces.size() && work_.pieces[next].parameter == part.piece->parameter; ++next)
        part.piece->energy += work_.pieces[next].energy;
    }
  }

 private:
  std::span<float> part(std::span<float> packed, std::size_t p) const {
    return packed.empty() ? packed : rows_.part(packed, space_.parts()[p]);
  }

  void pack() {
    for_each_row(space_, rows_, context_, [&](const SparsePart& part, std::uint64_t r, std::uint64_t begin) {
      std::ranges::copy(part.row_of(part.piece->gradient, r), gradient_.begin() + static_cast<std::ptrdiff_t>(begin));
      if (part.piece->has_residual())
        std::ranges::copy(part.row_of(part.piece->residual, r), residual_.begin() + static_cast<std::ptrdiff_t>(begin));
    });
  }

  // Into chunks as long as those of any gradient. Their numbers follow from the parameter and not from the message.
  void cut() {
    std::size_t count = 0;
    for (std::size_t p = 0; p < space_.parts().size(); ++p) count += (part(gradient_, p).size() + kChunkElements - 1) / kChunkElements;
    const auto pieces = context_.scratch().take<Piece>(count);
    std::size_t next = 0;
    std::uint64_t offset = 0;
    for (std::size_t p = 0; p < space_.parts().size(); ++p) {
      const Piece& whole = *space_.parts()[p].piece;
      const auto gradient = part(gradient_, p), residual = part(residual_, p);
      for (std::uint64_t first = 0; first < gradient.size(); first += kChunkElements) {
        Piece& piece = *std::construct_at(&pieces[next++]);
        const std::uint64_t length = std::min<std::uint64_t>(kChunkElements, gradient.size() - first);
        piece.parameter = whole.parameter;
        piece.definition = whole.definition;
        piece.first = first;
        piece.chunk = whole.parameter + first / kChunkElements;
        piece.offset = offset;
        piece.step = whole.step;
        piece.random = whole.random.from(first);
        piece.gradient = gradient.subspan(first, length);
        if (!residual.empty()) piece.residual = residual.subspan(first, length);
        piece.memory = memory_of(whole).carriers();
        offset += length;
      }
    }
    work_ = {pieces, offset, outer_.feedback, outer_.measured, outer_.gradient_scale};
  }

  const RowSpace& space_;
  const RowSet& rows_;
  const Work& outer_;
  Context& context_;
  std::span<float> gradient_;
  std::span<float> residual_;
  Work work_;
};

Exchange prepare_carrier(const Carried& carried, const Compressor& carrier, Context& context) {
  const std::vector<PackedParameter> parameters = carried.views(carrier);
  if (parameters.empty()) co_return;
  std::vector<const ParameterView*> views;
  for (const PackedParameter& parameter : parameters) views.push_back(&parameter);
  context.purpose = Purpose::kSetup;
  context.enter(Phase::kSetup);
  Exchange preparation = carrier.prepare(views, context);
  co_await preparation;
  context.purpose = Purpose::kPayload;
  context.enter(Phase::kEncode);
}

}  // namespace

std::uint32_t UnionHeader::size_class(std::uint64_t elements) {
  if (elements == 0) return 0;
  const auto octaves = std::log2(static_cast<double>(elements));
  return std::min(kClasses - 1, 1 + static_cast<std::uint32_t>(kClassesPerOctave * octaves));
}

std::uint64_t UnionHeader::most_of_class(std::uint32_t size_class) {
  return size_class == 0 ? 0 : static_cast<std::uint64_t>(std::exp2(size_class / kClassesPerOctave));
}

Exchange unite_rows(const RowSpace& space, Context& context, Union& result) {
  const auto words = context.scratch().take<std::uint32_t>(UnionHeader::kWords + space.words());
  const auto header = words.first(UnionHeader::kWords), marks = words.subspan(UnionHeader::kWords);
  const bool finite = mark_used_rows(space, context, marks);
  if (context.flag_needed) context.finite = context.finite && finite;
  std::ranges::fill(header, 0u);
  header[0] = context.finite ? 0 : 1;
  const RowSet own(space, marks, context.scratch());
  const std::uint32_t size_class = UnionHeader::size_class(own.elements());
  header[1 + size_class / 32] |= std::uint32_t{1} << (size_class % 32);
  Await round = context.unite(words);
  co_await round;

  context.any_non_finite = context.any_non_finite || header[0] != 0;
  if (context.any_non_finite) co_return;
  space.check(marks);
  result.rows = RowSet(space, marks, context.scratch());
  for (std::uint32_t c = 0; c < kClasses; ++c)
    if (header[1 + c / 32] >> (c % 32) & 1) result.most_elements = UnionHeader::most_of_class(c);
}

Exchange sum_united_rows(const RowSpace& space, const Union& united, Work& work, Context& context) {
  if (is_dense(space, united.rows)) {
    work.fell_back = true;
    const None none;
    Exchange plain = none.exchange(work, context);
    co_await plain;
    co_return;
  }
  const auto packed = context.scratch().take<float>(united.rows.elements());
  pack_values(space, united.rows, work, context, packed);
  measure_lossless(space, united.rows, work, packed);
  Await round = context.sum(packed);
  co_await round;

  context.enter(Phase::kDecode);
  if (flagged(packed, context)) co_return;
  commit_sums(space, united.rows, context, packed);
  clear_residuals(space, united.rows, context);
}

Exchange carry_united_rows(const RowSpace& space, const Union& united, const Compressor& carrier, Work& work, Context& context) {
  if (united.rows.elements() == 0) co_return;
  Carried carried(space, united.rows, work, context);
  Exchange preparation = prepare_carrier(carried, carrier, context);
  co_await preparation;
  Exchange inner = carrier.exchange(carried.work(), context);
  co_await inner;
  if (context.any_non_finite) co_return;
  carried.report(work);
  carried.commit();
}

}  // namespace thinwire
