#include "compressors/s2/sketched_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "compressors/shared/message.h"
#include "compressors/s2/s2_memory.h"
#include "kernels/hash.h"
#include "kernels/rows.h"
#include "kernels/statistics.h"

namespace thinwire {
namespace {

constexpr std::uint64_t kGroup = kernels::kSketchGroup;

// How one piece's rows travel.
struct PieceSketch {
  std::span<float> packed;     // its rows of the union
  std::span<float> tables;     // what is summed: tables, or the rows themselves where cells is 0
  std::uint32_t cells = 0;     // of each table
  std::array<std::uint64_t, 5> seeds{};
  std::uint64_t groups = 0;    // in a table
  kernels::SketchFactors factors;  // from sums to means
};

std::uint64_t cells_of(const Sketching& sketching, std::uint64_t groups) {
  const double cells = std::ceil(sketching.ratio * static_cast<double>(groups) / sketching.tables);
  const auto tables = static_cast<double>(sketching.tables);
  return cells * tables < static_cast<double>(groups) ? static_cast<std::uint64_t>(cells) : 0;
}

class Sketches {
 public:
  Sketches(const RowSpace& space, const RowSet& rows, const Sketching& sketching, const Work& work, Context& context)
      : space_(space), rows_(rows), sketching_(sketching), context_(context),
        packed_(context.scratch().take<float>(rows.elements())),
        pieces_(context.scratch().take<PieceSketch>(space.parts().size())) {
    pack_values(space, rows, work, context, packed_);
    std::uint64_t floats = 0;
    for (std::size_t p = 0; p < pieces_.size(); ++p) floats += plan(p);
    sums_ = context.scratch().take<float>(floats);
    for (PieceSketch& piece : pieces_) {
      piece.tables = sums_.subspan(sums_.size() - floats, table_floats(piece));
      floats -= piece.tables.size();
    }
    encode();
  }

  std::span<float> sums() const { return sums_; }
  std::span<const float> packed() const { return packed_; }

  // Means, packed.
  std::span<const float> decode() const {
    const auto means = context_.scratch().take<float>(packed_.size());
    const float weight = 1.0f / static_cast<float>(context_.world_size());
    for (const PieceSketch& piece : pieces_) {
      const auto of_piece = means.subspan(static_cast<std::size_t>(piece.packed.data() - packed_.data()), piece.packed.size());
      for_each_part(of_piece.size(), context_, [&](std::uint64_t first, std::uint64_t count, std::size_t) {
        const auto part = of_piece.subspan(first, count);
        if (piece.cells > 0)
          return kernels::estimate_from_sketch(piece.tables, seeds(piece), piece.cells, piece.groups, first / kGroup, piece.factors, part);
        for (std::size_t i = 0; i < part.size(); ++i) part[i] = weight * piece.tables[first + i];
      });
    }
    return means;
  }

 private:
  std::span<const std::uint64_t> seeds(const PieceSketch& piece) const {
    return std::span(piece.seeds).first(static_cast<std::size_t>(sketching_.tables));
  }

  std::uint64_t table_floats(const PieceSketch& piece) const {
    return piece.cells > 0 ? kGroup * piece.cells * static_cast<std::uint64_t>(sketching_.tables) : piece.packed.size();
  }

  // Returns how many floats it sends.
  std::uint64_t plan(std::size_t p) {
    const SparsePart& part = space_.parts()[p];
    PieceSketch& piece = pieces_[p] = PieceSketch();
    piece.packed = rows_.part(packed_, part);
    piece.groups = kernels::sketch_groups(piece.packed.size());
    piece.cells = static_cast<std::uint32_t>(cells_of(sketching_, piece.groups));
    if (piece.cells > 0) {
      const float weight = 1.0f / static_cast<float>(context_.world_size());
      const kernels::SketchFactors factors = sketch_factors(sketching_, piece.groups, piece.cells);
      piece.factors = {weight * factors.fuller, weight * factors.emptier};
    }
    // Fresh hashes for every step, so that nobody is unlucky for ever.
    const std::uint64_t step = kernels::hash(context_.seed(), memory_of(*part.piece).steps());
    for (std::uint64_t t = 0; t < piece.seeds.size(); ++t) piece.seeds[t] = kernels::hash(step, 8 * part.piece->parameter + t);
    return table_floats(piece);
  }

  // Threads share a table by ranges of its cells.
  void encode() const {
    const std::size_t ranges = context_.threads().threads(), tables = static_cast<std::size_t>(sketching_.tables);
    for (const PieceSketch& piece : pieces_) {
      if (piece.cells == 0) {
        std::ranges::copy(piece.packed, piece.tables.begin());
        continue;
      }
      context_.threads().for_each(ranges * tables, tables * piece.packed.size(), [&](std::size_t i, std::size_t) {
        const std::size_t t = i / ranges, range = i % ranges;
        const auto begin = static_cast<std::uint32_t>(piece.cells * std::uint64_t{range} / ranges);
        const auto end = static_cast<std::uint32_t>(piece.cells * (std::uint64_t{range} + 1) / ranges);
        const auto table = piece.tables.subspan(kGroup * t * piece.cells, kGroup * piece.cells);
        std::ranges::fill(table.subspan(kGroup * begin, kGroup * (end - begin)), 0.0f);
        kernels::add_to_sketch(piece.packed, piece.seeds[t], piece.cells, begin, end, table);
      });
    }
  }

  const RowSpace& space_;
  const RowSet& rows_;
  const Sketching& sketching_;
  Context& context_;
  std::span<float> packed_;
  std::span<PieceSketch> pieces_;
  std::span<float> sums_;
};

void commit(const RowSpace& space, const RowSet& rows, const Work& work, Context& context, std::span<const float> packed,
            std::span<const float> means) {
  begin_commit(space, context);
  for_each_row(space, rows, context, [&](const SparsePart& part, std::uint64_t r, std::uint64_t begin) {
    const auto mean = means.subspan(begin, part.length(r));
    const auto left = part.row_of(part.piece->next_residual, r);
    for (std::size_t i = 0; i < left.size(); ++i) left[i] = packed[begin + i] - mean[i];
    commit_row(part, r, work, mean);
  });
}

// A sum of sketches tells the error of the mean; only where there is one worker is that the worker's own.
void measure(const RowSpace& space, const RowSet& rows, Work& work, Context& context, std::span<const float> packed,
             std::span<const float> means) {
  if (!work.measured || context.world_size() > 1) return;
  for (std::size_t p = 0; p < space.parts().size(); ++p) {
    const auto values = rows.part(packed, space.parts()[p]), estimates = rows.part(means, space.parts()[p]);
    work.report.energies[p] = kernels::squared_norm(values);
    for (std::size_t i = 0; i < values.size(); ++i)
      work.report.errors[p] += std::pow(static_cast<double>(values[i]) - static_cast<double>(estimates[i]), 2);
  }
}

}  // namespace

kernels::SketchFactors sketch_factors(const Sketching& sketching, std::uint64_t groups, std::uint64_t cells) {
  if (!sketching.shrink) return {};
  const std::uint64_t others = groups / cells - 1;  // in the emptier cells
  const double tables = sketching.tables, of_noise = tables / ((tables + 1) / 2);
  const auto factor = [&](std::uint64_t noise) { return static_cast<float>(1 / (1 + of_noise * static_cast<double>(noise))); };
  if (sketching.tables == 1) return {factor(others + 1), factor(others)};
  // A median's estimates come from cells of both kinds.
  const float least = factor(groups % cells == 0 ? others : others + 1);
  return {least, least};
}

Exchange sketch_united_rows(const RowSpace& space, const Union& united, const Sketching& sketching, Work& work, Context& context) {
  const Sketches sketches(space, united.rows, sketching, work, context);
  if (united.rows.elements() > 0) {
    Await round = context.sum(sketches.sums());
    co_await round;
  }

  context.enter(Phase::kDecode);
  const auto means = sketches.decode();
  // A median does not show every cell that is not finite.
  if (!are_within(sketches.sums(), std::numeric_limits<float>::max(), context) ||
      !are_within(means, static_cast<double>(work.largest_mean), context)) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  measure(space, united.rows, work, context, sketches.packed(), means);
  commit(space, united.rows, work, context, sketches.packed(), means);
}

}  // namespace thinwire
