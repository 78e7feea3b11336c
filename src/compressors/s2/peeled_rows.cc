#include "compressors/s2/peeled_rows.h"

#include <bit>
#include <cmath>
#include <memory>

#include "compressors/shared/message.h"
#include "compressors/s2/peeling.h"
#include "compressors/s2/s2_memory.h"
#include "core/divide.h"
#include "kernels/hash.h"
#include "kernels/rows.h"
#include "kernels/statistics.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr int kExactBits = 24;                // integers that a float holds
constexpr double kFirstGuess = 1.0 / 16;      // share of the rows, before anything is known
constexpr std::uint64_t kSliceElements = 64;  // of a row, for one thread

// One piece's place in the message.
struct PieceTable {
  std::span<float> counts;
  std::span<float> cells;  // rows of `row` elements; all rows of the piece where hashes.cells is 0
  PeelingHashes hashes;
  std::span<const std::uint32_t> keys;  // rows that any worker has
  const Peeling* peeling = nullptr;
};

class Tables {
 public:
  Tables(const RowSpace& space, Context& context)
      : space_(space), context_(context), tables_(context.scratch().take<PieceTable>(space.parts().size())),
        fields_(static_cast<std::uint64_t>(counts_in_float(context.world_size()))) {
    std::uint64_t floats = 1;
    for (std::size_t p = 0; p < tables_.size(); ++p) floats += plan(p);
    all_ = context.scratch().take<float>(floats);
    std::uint64_t next = 1;
    for (std::size_t p = 0; p < tables_.size(); ++p) {
      const SparsePart& part = space.parts()[p];
      tables_[p].counts = all_.subspan(next, divided_up(part.rows, fields_));
      next += tables_[p].counts.size();
      tables_[p].cells = all_.subspan(next, cell_floats(p));
      next += tables_[p].cells.size();
    }
  }

  std::span<float> all() const { return all_; }

  // Adds this worker's rows, behind a number of the Head's.
  void encode(const Head& head, const RowSet& own, std::span<const float> packed) {
    std::ranges::fill(all_, 0.0f);
    all_[0] = static_cast<float>(head.word());
    for (std::size_t p = 0; p < tables_.size(); ++p) {
      const SparsePart& part = space_.parts()[p];
      for_each_slice(part, own.part(packed, part).size(), [&](std::uint64_t first, std::uint64_t count) {
        walk(part, own, [&](std::uint64_t r, std::uint64_t begin) {
          if (first >= part.length(r)) return;
          const auto row = packed.subspan(begin + first, std::min(count, part.length(r) - first));
          add(p, r, first, row);
        });
      });
      walk(part, own, [&](std::uint64_t r, std::uint64_t) { tables_[p].counts[r / fields_] += unit_of(r); });
    }
  }

  void read(Head& head) const {
    if (all_[0] != 0) head.note_not_finite();
  }

  // Reads which rows any worker has. Throws PayloadError if the counts are none.
  RowSet read_union() {
    const auto words = context_.scratch().take<std::uint32_t>(space_.words());
    std::ranges::fill(words, 0u);
    for (std::size_t p = 0; p < tables_.size(); ++p) {
      const SparsePart& part = space_.parts()[p];
      for (std::uint64_t r = 0; r < part.rows; ++r)
        if (count_of(p, r) > 0) words[part.first_word + r / 32] |= std::uint32_t{1} << (r % 32);
    }
    return {space_, words, context_.scratch()};
  }

  // Leaves in `sums` the rows of `all`, packed, and in `open` those that could not be read off: these are estimates.
  void peel(const RowSet& all, std::span<float> sums, std::span<std::uint32_t> open) {
    std::ranges::fill(open, 0u);
    for (std::size_t p = 0; p < tables_.size(); ++p) {
      if (tables_[p].hashes.cells == 0)
        copy(p, all, sums);
      else
        peel(p, all, sums, open);
    }
  }

 private:
  std::uint64_t cell_floats(std::size_t p) const {
    const SparsePart& part = space_.parts()[p];
    return tables_[p].hashes.cells == 0 ? part.elements() : 3 * tables_[p].hashes.cells * part.row;
  }

  std::uint64_t plan(std::size_t p) {
    const SparsePart& part = space_.parts()[p];
    const S2Memory& memory = memory_of(*part.piece);
    PieceTable& table = *std::construct_at(&tables_[p]);
    const double share = memory.steps() == 0 ? kFirstGuess : static_cast<double>(memory.seen().by_any);
    const std::uint64_t cells = peeling_cells(share * static_cast<double>(part.rows));
    if (cells < part.rows) table.hashes.cells = static_cast<std::uint32_t>(cells / 3);
    const std::uint64_t step = kernels::hash(context_.seed(), memory.steps());
    for (std::uint64_t third = 0; third < 3; ++third)
      table.hashes.seeds[third] = kernels::hash(step, 8 * part.piece->parameter + third);
    return divided_up(part.rows, fields_) + cell_floats(p);
  }

  // Columns are independent of each other, and rows are not: so threads share the columns.
  template <class Body>
  void for_each_slice(const SparsePart& part, std::uint64_t elements, const Body& body) const {
    const std::uint64_t most = std::min<std::uint64_t>(context_.threads().threads(), divided_up(part.row, kSliceElements));
    const std::uint64_t step = divided_up(part.row, std::max<std::uint64_t>(most, 1));
    context_.threads().for_each(divided_up(part.row, step), elements,
                                [&](std::size_t i, std::size_t) { body(i * step, std::min(step, part.row - i * step)); });
  }

  template <class Body>
  static void walk(const SparsePart& part, const RowSet& rows, const Body& body) {
    for (std::uint64_t w = part.first_word; w < part.first_word + part.words; ++w)
      for_each_row_of_word(part, rows, w, [&](const SparsePart&, std::uint64_t r, std::uint64_t begin) { body(r, begin); });
  }

  void add(std::size_t p, std::uint64_t r, std::uint64_t first, std::span<const float> row) {
    const std::uint64_t length = space_.parts()[p].row;
    if (tables_[p].hashes.cells == 0) {
      std::ranges::copy(row, tables_[p].cells.begin() + static_cast<std::ptrdiff_t>(r * length + first));
      return;
    }
    for (std::size_t third = 0; third < 3; ++third) {
      const PeelingHashes::Place place = tables_[p].hashes.place(static_cast<std::uint32_t>(r), third);
      kernels::add_scaled(tables_[p].cells.subspan(place.cell * length + first, row.size()), row, place.sign);
    }
  }

  float unit_of(std::uint64_t r) const {
    return static_cast<float>(std::uint32_t{1} << (r % fields_ * static_cast<std::uint64_t>(count_bits(context_.world_size()))));
  }

  std::uint32_t count_of(std::size_t p, std::uint64_t r) const {
    const float counts = tables_[p].counts[r / fields_];
    if (!(counts >= 0 && counts < static_cast<float>(1 << kExactBits)))
      throw PayloadError("the counts of workers that have a row sum up to " + std::to_string(counts));
    const int bits = count_bits(context_.world_size());
    return static_cast<std::uint32_t>(counts) >> (r % fields_ * static_cast<std::uint64_t>(bits)) & ((1u << bits) - 1);
  }

  void copy(std::size_t p, const RowSet& all, std::span<float> sums) const {
    const SparsePart& part = space_.parts()[p];
    walk(part, all, [&](std::uint64_t r, std::uint64_t begin) {
      std::ranges::copy(part.row_of(tables_[p].cells, r), sums.begin() + static_cast<std::ptrdiff_t>(begin));
    });
  }

  void peel(std::size_t p, const RowSet& all, std::span<float> sums, std::span<std::uint32_t> open) {
    const SparsePart& part = space_.parts()[p];
    const PeelingHashes& hashes = tables_[p].hashes;
    const std::uint64_t rows = all.rows_of(part);
    const auto keys = context_.scratch().take<std::uint32_t>(rows);
    const auto begins = context_.scratch().take<std::uint64_t>(rows);
    std::size_t next = 0;
    walk(part, all, [&](std::uint64_t r, std::uint64_t begin) {
      keys[next] = static_cast<std::uint32_t>(r);
      begins[next++] = begin;
    });
    const Peeling peeling(keys, hashes, context_.scratch());
    for (const std::uint32_t k : peeling.left())
      open[part.first_word + keys[k] / 32] |= std::uint32_t{1} << (keys[k] % 32);
    for_each_slice(part, 3 * rows * part.row, [&](std::uint64_t first, std::uint64_t count) {
      const auto slice_of = [&](std::uint32_t k) {
        const std::uint64_t length = part.length(keys[k]);
        return sums.subspan(begins[k] + std::min(first, length), first < length ? std::min(count, length - first) : 0);
      };
      const auto cell = [&](std::uint32_t number, std::size_t length) {
        return tables_[p].cells.subspan(number * part.row + first, length);
      };
      for (const Peeling::Step& step : peeling.order()) {
        const auto sum = slice_of(step.key);
        const auto from = hashes.place(keys[step.key], step.third);
        std::ranges::copy(cell(from.cell, sum.size()), sum.begin());
        if (from.sign < 0) kernels::multiply(sum, -1.0f);
        for (std::size_t third = 0; third < 3; ++third) {
          const auto place = hashes.place(keys[step.key], third);
          if (third != step.third) kernels::add_scaled(cell(place.cell, sum.size()), sum, -place.sign);
        }
      }
      for (const std::uint32_t k : peeling.left()) estimate(peeling, hashes, keys[k], slice_of(k), cell);
    });
  }

  template <class Cell>
  static void estimate(const Peeling& peeling, const PeelingHashes& hashes, std::uint32_t key, std::span<float> sum, const Cell& cell) {
    PeelingHashes::Place best = hashes.place(key, 0);
    for (std::size_t third = 1; third < 3; ++third) {
      const auto place = hashes.place(key, third);
      if (peeling.left_in(place.cell) < peeling.left_in(best.cell)) best = place;
    }
    std::ranges::copy(cell(best.cell, sum.size()), sum.begin());
    kernels::multiply(sum, best.sign / static_cast<float>(3 * peeling.left_in(best.cell) - 2));
  }

  const RowSpace& space_;
  Context& context_;
  std::span<PieceTable> tables_;
  std::uint64_t fields_;
  std::span<float> all_;
};

// Values that this worker has added to the sums are no longer in its residual; estimated means are taken out of it even if it has
// not added to them: over all workers nothing is lost.
void commit(const RowSpace& space, const RowSet& all, const RowSet& own, const RowSet& open, const Work& work, Context& context,
            std::span<const float> packed, std::span<float> sums) {
  const float weight = 1.0f / static_cast<float>(context.world_size());
  begin_commit(space, context);
  for_each_row(space, all, context, [&](const SparsePart& part, std::uint64_t r, std::uint64_t begin) {
    const auto mean = sums.subspan(begin, part.length(r));
    kernels::multiply(mean, weight);
    const auto left = part.row_of(part.piece->next_residual, r);
    if (!left.empty() && open.has(part, r)) {
      if (own.has(part, r)) std::ranges::copy(packed.subspan(own.begin(part, r), left.size()), left.begin());
      kernels::add_scaled(left, mean, -1.0f);
    } else if (own.has(part, r)) {
      std::ranges::fill(left, 0.0f);
    }
    commit_row(part, r, work, mean);
  });
}

// What estimates miss of the rows that are left; of several workers' sum nobody knows whose it is. To be called before their means
// are divided.
void measure(const RowSpace& space, const RowSet& all, const RowSet& own, const RowSet& open, Work& work, Context& context,
             std::span<const float> packed, std::span<const float> sums) {
  if (!work.measured) return;
  measure_lossless(space, own, work, packed);
  for (std::size_t p = 0; p < space.parts().size(); ++p) {
    const SparsePart& part = space.parts()[p];
    if (context.world_size() > 1 && open.rows_of(part) > 0) work.report.energies[p] = 0;
    if (context.world_size() > 1) continue;
    for (std::uint64_t w = part.first_word; w < part.first_word + part.words; ++w)
      for_each_row_of_word(part, open, w, [&](const SparsePart&, std::uint64_t r, std::uint64_t) {
        const float* const value = packed.data() + own.begin(part, r);
        const float* const estimate = sums.data() + all.begin(part, r);
        for (std::uint64_t i = 0; i < part.length(r); ++i)
          work.report.errors[p] += std::pow(static_cast<double>(value[i]) - static_cast<double>(estimate[i]), 2);
      });
  }
}

void remember(const RowSpace& space, const RowSet& all) {
  for (const SparsePart& part : space.parts()) {
    if (part.rows == 0) continue;
    const double rows = static_cast<double>(all.rows_of(part)) / static_cast<double>(part.rows);
    const double before = static_cast<double>(memory_of(*part.piece).seen().by_any);
    // Downwards slowly: a step of few rows is no promise for the next.
    memory_of(*part.piece).see({static_cast<float>(std::max(rows, 0.9 * before)), 0});
  }
}

// Sums the rows that were left, once more and as they are.
Exchange sum_rest(const RowSpace& space, const RowSet& rest, const RowSet& all, const Work& work, Context& context, std::span<float> sums) {
  const auto packed = context.scratch().take<float>(rest.elements());
  pack_values(space, rest, work, context, packed);
  Await round = context.sum(packed);
  co_await round;
  for_each_row(space, rest, context, [&](const SparsePart& part, std::uint64_t r, std::uint64_t begin) {
    std::ranges::copy(packed.subspan(begin, part.length(r)), sums.begin() + static_cast<std::ptrdiff_t>(all.begin(part, r)));
  });
}

}  // namespace

std::uint64_t peeling_cells(double expected_rows) {
  const double cells = 1.25 * expected_rows + 6 * std::sqrt(expected_rows) + 24;
  return 3 * static_cast<std::uint64_t>(std::ceil(cells / 3));
}

int count_bits(int world_size) { return std::bit_width(static_cast<unsigned>(world_size)); }
int counts_in_float(int world_size) { return kExactBits / count_bits(world_size); }

Exchange peel_rows(const RowSpace& space, Work& work, Context& context) {
  Head head(work, context.scratch());
  const RowSet own = own_rows(space, context, head);
  const auto packed = context.scratch().take<float>(own.elements());
  pack_values(space, own, work, context, packed);
  Tables tables(space, context);
  tables.encode(head, own, packed);
  Await round = context.sum(tables.all());
  co_await round;

  context.enter(Phase::kDecode);
  tables.read(head);
  if (!head.finite()) {
    context.any_non_finite = true;
    co_return;
  }
  const RowSet all = tables.read_union();
  const auto sums = context.scratch().take<float>(all.elements());
  const auto open = context.scratch().take<std::uint32_t>(space.words());
  tables.peel(all, sums, open);
  if (!work.feedback) {
    const RowSet rest(space, open, context.scratch());
    if (rest.rows() > 0) {
      Exchange again = sum_rest(space, rest, all, work, context, sums);
      co_await again;
    }
    std::ranges::fill(open, 0u);
  }
  if (!sums_fit(sums, work, context)) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  const RowSet estimated(space, open, context.scratch());
  remember(space, all);
  measure(space, all, own, estimated, work, context, packed, sums);
  commit(space, all, own, estimated, work, context, packed, sums);
}

}  // namespace thinwire
