// Sketched-SGD: sketches of all workers' values add up, their sum tells which entries are large, and exact values of those are summed.
// Source: Ivkin, Rothchild, Ullah, Braverman, Stoica, Arora, "Communication-efficient distributed SGD with sketching", NeurIPS 2019,
// algorithms 1 (HEAVYMIX) and 3, which was trained with. Symbols: S the count sketch, v gradient plus residual:
//
//   S <- sum of S(v);   estimates u <- median of S's tables;   the k - l largest |u|, and l others drawn at random;   sum of v there.
//
// Here for each chunk of n entries, k = ceil(density n), l = ceil(drawn k). Published: l is what is missing from k to estimates beyond
// |v|/sqrt(k), which normal values hardly have; or 0, so that what a sketch cannot tell apart may wait for ever. Algorithm 3 keeps k of P k
// sums, as a server sends no more; an all-reduce has given them all to everybody. Momentum is the optimizer's. Whatever the sketch says,
// (1 - l/(n - k + l)) |v|^2 at most is left in expectation.
//
// The sketch is S2's (kernels/rows.h): `tables` of c = floor(density `sketch` n / (16 tables)) cells of 16 floats. With no cells, or l = k,
// all k are drawn; where density (1 + sketch) >= 1 the values themselves are summed. Two rounds: a sum of tables, where there are any,
// and sum_entries() (summed_entries.h). 32 (16 c tables + k) bits a chunk. Gradient and residual are read twice, and by decoding.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "compressors/shared/row.h"
#include "compressors/sparsifiers/density.h"
#include "compressors/sparsifiers/strata.h"
#include "compressors/sparsifiers/summed_entries.h"
#include "kernels/rounding.h"
#include "kernels/rows.h"
#include "kernels/selecting.h"

namespace thinwire {
namespace {

constexpr std::size_t kGroup = kernels::kSketchGroup;

struct Sketching {
  double density = 0.01, sketch = 10, drawn = 0.1;
  std::size_t tables = 5;

  bool sends_all() const { return density * (1 + sketch) >= 1; }
};

// How many entries of a chunk are sent and how many of these are drawn, and the cells of a table.
struct Shares {
  std::size_t sent, drawn, cells;

  Shares(const Sketching& sketching, std::size_t n)
      : sent(kept_entries(sketching.sends_all() ? 1 : sketching.density, n)), drawn(kept_entries(sketching.drawn, sent)),
        cells(static_cast<std::size_t>(sketching.density * sketching.sketch * static_cast<double>(n)) / (kGroup * sketching.tables)) {
    if (sent == n || drawn == sent) cells = 0;
    if (cells == 0) drawn = sent;
  }
};

class FoundPlaces : public WrittenPlaces {
 public:
  FoundPlaces(const Sketching& sketching, const Work& work, Context& context)
      : WrittenPlaces({work, context, [&](std::size_t i) { return Shares(sketching, work.pieces[i].elements()).sent; }}, context),
        sketching_(sketching),
        parts_(work, context, [&](std::size_t i) { return kGroup * sketching.tables * shares(work.pieces[i]).cells; }),
        tables_(context.scratch().take<float>(parts_.count())), longest_(longest_piece(work)),
        buffers_(context.scratch().take<float>(longest_ * context.threads().threads())) {}

  // What is summed; nothing if no chunk has a sketch.
  std::span<float> tables() const { return tables_; }

  void sketch(const Work& work, Context& context) const {
    std::ranges::fill(tables_, 0.0f);
    for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
      const auto cells = static_cast<std::uint32_t>(shares(piece).cells);
      if (cells == 0) return;
      const auto values = buffers_.subspan(thread * longest_, piece.elements());
      read_values(piece, work, values);
      const auto seeds = seeds_of(piece);
      for (std::size_t t = 0; t < sketching_.tables; ++t)
        kernels::add_to_sketch(values, seeds[t], cells, 0, cells, parts_.of(tables_, i).subspan(t * kGroup * cells, kGroup * cells));
    });
  }

  // Of the sums: the places, of large estimates and then of what was drawn.
  void find(const Work& work, Context& context) const {
    const std::size_t room = kernels::selecting_room(longest_);
    const auto selecting = context.scratch().take<std::uint16_t>(room * context.threads().threads());
    const auto draws = context.scratch().take<std::uint32_t>(buffers_.size());
    for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
      const std::size_t n = piece.elements();
      const auto [sent, drawn, cells] = shares(piece);
      const auto large = places_of(i).first(sent - drawn), others = places_of(i).subspan(sent - drawn);
      if (cells > 0) {
        const auto estimates = buffers_.subspan(thread * longest_, n);
        const auto seeds = seeds_of(piece);
        kernels::estimate_from_sketch(parts_.of(tables_, i), std::span(seeds).first(sketching_.tables), static_cast<std::uint32_t>(cells),
                                      kernels::sketch_groups(n), 0, {}, estimates);
        kernels::select_largest(estimates, large, selecting.subspan(thread * room, room));
      }
      const auto words = draws.subspan(thread * longest_, drawn);
      const RandomSequence random = piece.random.common();
      kernels::random_words(random.counter, random.key, words);
      std::size_t passed = 0;  // large ones before the place, as it is drawn among the others
      for_each_drawn(n - large.size(), words, [&](std::size_t j, std::size_t rank, std::uint64_t) {
        while (passed < large.size() && large[passed] <= rank + passed) ++passed;
        others[j] = static_cast<std::uint16_t>(rank + passed);
      });
    });
  }

 private:
  Shares shares(const Piece& piece) const { return {sketching_, piece.elements()}; }
  // Fresh hashes for every step, so that nobody is unlucky for ever.
  static std::array<std::uint64_t, 5> seeds_of(const Piece& piece) {
    std::array<std::uint32_t, 10> words;
    const RandomSequence random = piece.random.common().second();
    kernels::random_words(random.counter, random.key, words);
    std::array<std::uint64_t, 5> seeds;
    for (std::size_t t = 0; t < seeds.size(); ++t) seeds[t] = words[2 * t] | std::uint64_t{words[2 * t + 1]} << 32;
    return seeds;
  }

  const Sketching& sketching_;
  PieceParts parts_;
  std::span<float> tables_;
  std::size_t longest_;
  std::span<float> buffers_;
};

class SketchedSgd : public Compressor {
 public:
  explicit SketchedSgd(const Sketching& sketching) : sketching_(sketching) {}

  Exchange exchange(Work& work, Context& context) const override {
    if (work.elements == 0) co_return;
    const FoundPlaces found(sketching_, work, context);
    if (!found.tables().empty()) {  // by layouts, which all workers share
      found.sketch(work, context);
      Await round = context.sum(found.tables());
      co_await round;
      // Estimates from what is not finite would differ between processors.
      if (!are_within(found.tables(), std::numeric_limits<float>::max(), context)) {
        context.any_non_finite = true;
        co_return;
      }
    }
    found.find(work, context);
    Exchange sending = sum_entries(found, 1, work, context);
    co_await sending;
  }

 private:
  Sketching sketching_;
};

Sketching sketching_of(const SpecValues& values) {
  const auto tables = static_cast<std::size_t>(std::stoi(values.choice("tables")));
  return {values.real("density"), values.real("sketch"), values.real("drawn"), tables};
}

}  // namespace

Row sketchedsgd_row() {
  Row row;
  row.info = {.name = "sketchedsgd",
              .family = Family::kSparsifiers,
              .description = "Sketched-SGD, places by a sketch: of each chunk the entries that are the largest of all workers' sum, "
                             "as its count sketch estimates them, and some drawn at random; exact values add up",
              .bits = "3.52 at 1 %",
              .wire_id = 61,
              .aggregation = Aggregation::kLinear,
              .contractive = true,
              .reference = "Ivkin et al., NeurIPS 2019, arXiv 1903.04488"};
  row.info.sizes = {"density"};
  row.info.parameters = {density_parameter(), real("sketch", "10", 1, 1000, "floats of the sketch for each entry that is sent"),
                         choice("tables", {"5", "3", "1"}, "the sketch's rows, of which the median counts"),
                         real("drawn", "0.1", 0, 0.5, "share of the entries sent that is drawn at random; with 0 some may wait for ever"),
                         feedback("on")};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<SketchedSgd>(sketching_of(values));
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    const Sketching sketching = sketching_of(values);
    claims.lossless = sketching.sends_all();
    claims.contractive = claims.lossless || sketching.drawn > 0;
    claims.on_average = !claims.lossless;
    if (!claims.lossless) claims.largest = 1e33;  // sums of up to a whole chunk's values
    claims.bits = 32 * std::min(1.0, sketching.density * (1 + sketching.sketch));
    claims.lost = 1 - 0.95 * sketching.density;  // as of random-k: what is found is no less than what is drawn
    return claims;
  };
  row.trials.further = {"density=0.05", "density=0.04,sketch=2,tables=1", "density=0.05,drawn=0,feedback=off",
                        "density=0.1,sketch=1,tables=3", "density=1"};
  return row;
}

}  // namespace thinwire
