#include "compressors/s2/united_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "compressors/shared/message.h"
#include "compressors/quantizers/none.h"
#include "compressors/s2/s2_memory.h"
#include "core/divide.h"

namespace thinwire {
namespace {

constexpr double kClassesPerOctave = 4;
constexpr std::uint32_t kClasses = 128;

// Packed rows cost a pass more than the gradient as it is, so a sixteenth less is no gain.
bool is_dense(const RowSpace& space, const RowSet& rows) { return 16 * rows.elements() >= 15 * space.elements(); }

// The packed rows of one parameter, as a parameter of its own.
class PackedParameter : public ParameterView {
 public:
  PackedParameter(Parameter definition, CompressorMemory& memory, std::span<const float> values)
      : definition_(std::move(definition)), memory_(memory), values_(values) {}

  const Parameter& definition() const override { return definition_; }
  CompressorMemory& memory() const override { return memory_; }
  void read(std::uint64_t first, std::span<float> values) const override {
    std::ranges::copy(values_.subspan(first, values.size()), values.begin());
  }

 private:
  Parameter definition_;
  CompressorMemory& memory_;
  std::span<const float> values_;
};

// Packed rows as the carrier's work: its gradients are gradient plus residual, and its residuals nothing yet. All are copies, which
// take their places once the carrier is done.
class Carried {
 public:
  Carried(const RowSpace& space, const RowSet& rows, const Work& work, Context& context)
      : space_(space), rows_(rows), outer_(work), context_(context), values_(context.scratch().take<float>(rows.elements())),
        left_(context.scratch().take<float>(work.feedback ? rows.elements() : 0)) {
    pack_values(space, rows, work, context, values_);
    std::ranges::fill(left_, 0.0f);
    cut();
  }

  // Of the parameters that the carrier must see whole.
  std::vector<PackedParameter> views(const Compressor& carrier) const {
    std::vector<PackedParameter> result;
    for (const SparsePart& part : space_.parts()) {
      const auto values = rows_.part(values_, part);
      const S2Memory& memory = memory_of(*part.piece);
      if (values.empty() || !memory.carriers() || !carrier.needs_preparation(memory.steps())) continue;
      result.emplace_back(Parameter{part.piece->definition->name, {static_cast<std::int64_t>(values.size())}}, *memory.carriers(), values);
    }
    return result;
  }

  Work& work() { return work_; }

  // Whether the means, which lie where the values were, can be stored.
  bool means_fit() const { return are_within(values_, static_cast<double>(outer_.largest_mean), context_); }

  void commit() const {
    begin_commit(space_, context_);
    for_each_row(space_, rows_, context_, [&](const SparsePart& part, std::uint64_t r, std::uint64_t begin) {
      const std::uint64_t length = part.length(r);
      if (!left_.empty()) std::ranges::copy(left_.subspan(begin, length), part.row_of(part.piece->next_residual, r).begin());
      commit_row(part, r, outer_, values_.subspan(begin, length));
    });
  }

  // The carrier's figures, by the pieces that they belong to.
  void report(Work& outer) const {
    if (!outer.measured) return;
    std::size_t next = 0;
    for (std::size_t p = 0; p < space_.parts().size(); ++p)
      for (; next < work_.pieces.size() && work_.pieces[next].parameter == space_.parts()[p].piece->parameter; ++next) {
        outer.report.energies[p] += work_.report.energies[next];
        outer.report.errors[p] += work_.report.errors[next];
      }
  }

 private:
  // Into chunks as long as those of any gradient. Their numbers follow from the parameter and not from the message.
  void cut() {
    std::size_t count = 0;
    for (const SparsePart& part : space_.parts()) count += divided_up(rows_.part(values_, part).size(), kChunkElements);
    const auto pieces = context_.scratch().take<Piece>(count);
    std::size_t next = 0;
    for (const SparsePart& part : space_.parts()) {
      const auto values = rows_.part(values_, part), left = left_.empty() ? left_ : rows_.part(left_, part);
      for (std::uint64_t first = 0; first < values.size(); first += kChunkElements)
        cut_piece(*part.piece, first, values, left, *std::construct_at(&pieces[next++]));
    }
    work_ = {.pieces = pieces, .elements = rows_.elements(), .feedback = outer_.feedback, .measured = outer_.measured,
             .largest_mean = std::numeric_limits<float>::max(), .is_stage = true};
    if (!outer_.measured) return;
    work_.report.energies = context_.scratch().take<double>(count);
    work_.report.errors = context_.scratch().take<double>(count);
    std::ranges::fill(work_.report.energies, 0.0);
    std::ranges::fill(work_.report.errors, 0.0);
  }

  void cut_piece(const Piece& whole, std::uint64_t first, std::span<float> values, std::span<float> left, Piece& piece) const {
    const std::uint64_t length = std::min<std::uint64_t>(kChunkElements, values.size() - first);
    piece.parameter = whole.parameter;
    piece.definition = whole.definition;
    piece.step = whole.step;
    piece.first = first;
    piece.owner = static_cast<std::uint32_t>((whole.parameter + first / kChunkElements) % static_cast<std::uint64_t>(context_.world_size()));
    piece.offset = static_cast<std::uint64_t>(values.data() - values_.data()) + first;
    piece.gradient = values.subspan(first, length);
    if (!left.empty()) piece.next_residual = left.subspan(first, length);
    piece.residual = piece.next_residual;
    piece.memory = memory_of(whole).carriers();
    piece.random = whole.random.from(first);
  }

  const RowSpace& space_;
  const RowSet& rows_;
  const Work& outer_;
  Context& context_;
  std::span<float> values_;
  std::span<float> left_;  // empty without feedback
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

Exchange unite_rows(const RowSpace& space, const Work& work, Context& context, Union& result) {
  const auto words = context.scratch().take<std::uint32_t>(UnionHeader::kWords + space.words());
  const auto header = words.first(UnionHeader::kWords), marks = words.subspan(UnionHeader::kWords);
  Head head(work, context.scratch());
  mark_used_rows(space, context, marks, head);
  std::ranges::fill(header, 0u);
  header[0] = head.word();
  const RowSet own(space, marks, context.scratch());
  const std::uint32_t size_class = UnionHeader::size_class(own.elements());
  header[1 + size_class / 32] |= std::uint32_t{1} << (size_class % 32);
  Await round = context.unite(words);
  co_await round;

  head.read_word(header[0]);
  if (!head.finite()) {
    context.any_non_finite = true;
    co_return;
  }
  space.check(marks);
  result.rows = RowSet(space, marks, context.scratch());
  for (std::uint32_t c = 0; c < kClasses; ++c)
    if (header[1 + c / 32] >> (c % 32) & 1) result.most_elements = UnionHeader::most_of_class(c);
}

Exchange sum_united_rows(const RowSpace& space, const Union& united, Work& work, Context& context) {
  if (is_dense(space, united.rows)) {
    work.report.fell_back = true;
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
  if (!sums_fit(packed, work, context)) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  begin_commit(space, context);
  commit_sums(space, united.rows, united.rows, work, context, packed);
}

Exchange carry_united_rows(const RowSpace& space, const Union& united, const Compressor& carrier, Work& work, Context& context) {
  Carried carried(space, united.rows, work, context);
  if (united.rows.elements() > 0) {
    Exchange preparation = prepare_carrier(carried, carrier, context);
    co_await preparation;
    Exchange inner = carrier.exchange(carried.work(), context);
    co_await inner;
  }
  context.any_non_finite = context.any_non_finite || !carried.means_fit();
  if (context.any_non_finite) co_return;
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  carried.report(work);
  carried.commit();
}

}  // namespace thinwire
