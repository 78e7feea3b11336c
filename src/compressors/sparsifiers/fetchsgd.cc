// FetchSGD: sketches of all workers' gradients add up, and momentum and what was not sent are kept as sketches too, the same on all workers.
// Source: Rothchild, Panda, Ullah, Ivkin, Stoica, Braverman, Gonzalez, Arora: "FetchSGD: communication-efficient federated learning with
// sketching", ICML 2020, algorithm 1. Symbols: W workers, S a count sketch, G_i the gradients, u and e the sketches of momentum, with
// factor m (`momentum`), and of error:
//
//   u <- m u + mean of S(G_i);   e <- e + u;   D <- the k largest estimates of e;   u and e become 0 wherever D is in them
//
// D is the result. Published is e <- e - S(D); zeroing what was sent, and u there (momentum factor masking), is what the authors'
// experiments did. Subtracting estimates whose noise is larger than what they estimate adds that noise to e.
//
// Here for each chunk of n entries, k = ceil(density n), with `tables` tables of c = floor(density `sketch` n / (16 tables)) cells of 16
// floats (kernels/rows.h), whose hashes stay the same in all steps. A chunk for which c = 0, or any with density `sketch` >= 1, travels as it
// is, and remembers nothing: as what is sent at once has no momentum. One sum of 512 c tables bits a chunk. The learning rate is the
// optimizer's, applied to D, where the paper's multiplies u; with a constant one this is the same.
//
// u and e are one memory (element_memory.h), not a worker's own: no worker has a residual, and workers may come and go. D are estimates and
// no sums of values, and momentum is in it: no claim of conservation is made, and the optimizer must have no momentum.
//
// Memory passes: encode reads the gradient once, and adds it `tables` times in the cache; decode writes the mean.
#include <algorithm>
#include <array>
#include <limits>

#include "compressors/shared/averaging.h"
#include "compressors/shared/element_memory.h"
#include "compressors/shared/row.h"
#include "compressors/sparsifiers/density.h"
#include "kernels/hash.h"
#include "kernels/rows.h"
#include "kernels/selecting.h"
#include "kernels/statistics.h"

namespace thinwire {
namespace {

constexpr std::size_t kGroup = kernels::kSketchGroup, kMostTables = 5;

struct Sketching {
  double density = 0.01, sketch = 10;
  std::size_t tables = 5;
  float momentum = 0.9f;

  bool sends_all() const { return density * sketch >= 1; }
  std::uint32_t cells(std::uint64_t elements) const {
    if (sends_all()) return 0;
    return static_cast<std::uint32_t>(density * sketch * static_cast<double>(elements)) / static_cast<std::uint32_t>(kGroup * tables);
  }
  // Of all tables of a chunk; 0 if it has none.
  std::uint64_t floats(std::uint64_t elements) const { return kGroup * tables * cells(elements); }
};

using Seeds = std::array<std::uint64_t, kMostTables>;

// Of a chunk, in every step and under every seed: what is remembered depends on them.
Seeds seeds_of(const Piece& piece) {
  Seeds seeds;
  const std::uint64_t chunk = kernels::hash(piece.parameter, piece.first);
  for (std::size_t t = 0; t < seeds.size(); ++t) seeds[t] = kernels::hash(chunk, t);
  return seeds;
}

class FetchSgd : public Compressor {
 public:
  explicit FetchSgd(const Sketching& sketching) : sketching_(sketching) {}

  bool remembers_elements() const override { return true; }
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& parameter, std::uint64_t /*chunk*/) const override {
    const std::uint64_t whole = parameter.elements() / kChunkElements, rest = parameter.elements() % kChunkElements;
    return std::make_unique<ElementMemory>(2 * (whole * sketching_.floats(kChunkElements) + sketching_.floats(rest)));
  }
  Exchange exchange(Work& work, Context& context) const override;

 private:
  std::span<float> tables_of(const Piece& piece, std::size_t t, std::span<float> floats) const {
    const std::size_t table = kGroup * sketching_.cells(piece.elements());
    return floats.subspan(t * table, table);
  }
  void add(std::span<const float> values, const Piece& piece, std::span<float> floats) const;
  void remember(const Piece& piece, std::span<const float> sums) const;
  void take_largest(const Piece& piece, std::span<float> estimates, std::span<float> mean, std::span<std::uint16_t> selecting) const;

  // u, and behind it e.
  std::uint64_t first_float(const Piece& piece) const { return piece.first / kChunkElements * 2 * sketching_.floats(kChunkElements); }
  std::span<float> error_after(const Piece& piece) const {
    const std::uint64_t floats = sketching_.floats(piece.elements());
    return ElementMemory::after(piece, first_float(piece) + floats, floats);
  }

  Sketching sketching_;
};

void FetchSgd::add(std::span<const float> values, const Piece& piece, std::span<float> floats) const {
  const std::uint32_t cells = sketching_.cells(piece.elements());
  const Seeds seeds = seeds_of(piece);
  std::ranges::fill(floats, 0.0f);
  for (std::size_t t = 0; t < sketching_.tables; ++t)
    kernels::add_to_sketch(values, seeds[t], cells, 0, cells, tables_of(piece, t, floats));
}

void FetchSgd::remember(const Piece& piece, std::span<const float> sums) const {
  const auto both = ElementMemory::after(piece, first_float(piece), 2 * sums.size());
  const auto u = both.first(sums.size()), e = both.subspan(sums.size());
  std::ranges::copy(ElementMemory::before(piece, first_float(piece), both.size()), both.begin());
  kernels::multiply(u, sketching_.momentum);
  kernels::add_scaled(u, sums, 1.0f);
  kernels::add_scaled(e, u, 1.0f);
}

// mean <- D, which is taken out of what is remembered.
void FetchSgd::take_largest(const Piece& piece, std::span<float> estimates, std::span<float> mean, std::span<std::uint16_t> selecting) const {
  const auto e = error_after(piece), u = ElementMemory::after(piece, first_float(piece), e.size());
  const std::uint32_t cells = sketching_.cells(piece.elements());
  const std::size_t groups = kernels::sketch_groups(piece.elements());
  const Seeds seeds = seeds_of(piece);
  const auto places = selecting.last(kept_entries(sketching_.density, piece.elements()));
  kernels::estimate_from_sketch(e, std::span(seeds).first(sketching_.tables), cells, groups, 0, {}, estimates);
  kernels::select_largest(estimates, places, selecting);
  std::ranges::fill(mean, 0.0f);
  for (const std::uint16_t place : places) mean[place] = estimates[place];
  for (std::size_t t = 0; t < sketching_.tables; ++t) {
    const kernels::Permutation permuted(seeds[t], groups);
    const auto of_error = tables_of(piece, t, e), of_momentum = tables_of(piece, t, u);
    for (const std::uint16_t place : places) {
      const std::size_t cell = permuted(place / kGroup) % cells;
      of_error[kGroup * cell + place % kGroup] = of_momentum[kGroup * cell + place % kGroup] = 0;
    }
  }
}

Exchange FetchSgd::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  const std::size_t threads = context.threads().threads(), longest = longest_piece(work);
  const auto is_sketched = [&](const Piece& piece) { return sketching_.cells(piece.elements()) > 0; };
  const PieceParts parts(work, context, [&](std::size_t i) {
    return is_sketched(work.pieces[i]) ? sketching_.floats(work.pieces[i].elements()) : work.pieces[i].elements();
  });
  Head head(work, context.scratch());
  const auto message = context.scratch().take<float>(parts.count() + head.numbers());
  const auto sums = message.first(parts.count()), news = message.subspan(parts.count());
  const auto buffers = context.scratch().take<float>(2 * longest * threads);
  const std::size_t room = kernels::selecting_room(longest) + longest;
  const auto selecting = context.scratch().take<std::uint16_t>(room * threads);
  for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
    const auto part = parts.of(sums, i);
    const auto values = is_sketched(piece) ? buffers.subspan(2 * thread * longest, piece.elements()) : part;
    head.note(i, read_values(piece, work, values));
    if (is_sketched(piece)) add(values, piece, part);
  });
  head.write(news, 1.0f);
  Await round = context.sum(message);
  co_await round;

  context.enter(Phase::kDecode);
  head.read<float>(news);
  const bool fit = all_pieces(context, work, [&](std::size_t i, std::size_t) {
    const Piece& piece = work.pieces[i];
    const auto part = parts.of(sums, i);
    kernels::multiply(part, 1.0f / static_cast<float>(context.world_size()));
    if (!is_sketched(piece)) return holds_mean(work, part);
    remember(piece, part);
    return holds_mean(work, error_after(piece));  // no estimate is larger
  });
  if (!head.finite() || !fit) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
    const auto buffer = buffers.subspan(2 * thread * longest, piece.elements());
    std::span<float> mean = parts.of(sums, i);
    if (is_sketched(piece)) {
      mean = buffers.subspan((2 * thread + 1) * longest, piece.elements());
      take_largest(piece, buffer, mean, selecting.subspan(thread * room, room));
    }
    if (work.measured && context.world_size() == 1) {  // of several, nobody knows what was lost of its own
      work.report.energies[i] = static_cast<double>(read_values(piece, work, buffer).sum.sum_squares);
      kernels::add_scaled(buffer, mean, -1.0f);
      work.report.errors[i] = kernels::squared_norm(buffer);
    }
    store_mean(mean, work.gradient_scale, piece.gradient, {});
  });
}

Sketching sketching_of(const SpecValues& values) {
  return {values.real("density"), values.real("sketch"), static_cast<std::size_t>(std::stoi(values.choice("tables"))),
          static_cast<float>(values.real("momentum"))};
}

}  // namespace

Row fetchsgd_row() {
  Row row;
  row.info = {.name = "fetchsgd",
              .family = Family::kSparsifiers,
              .description = "FetchSGD, all in sketches: gradients are summed as count sketches, and momentum and error are sketches that all "
                             "workers share; wants an optimizer without momentum",
              .bits = "3.2 at 1 %",
              .wire_id = 72,
              .aggregation = Aggregation::kLinear,
              .reference = "Rothchild et al., ICML 2020, arXiv 2007.07682"};
  row.info.sizes = {};  // its result is no gradient
  row.info.parameters = {density_parameter(), real("sketch", "10", 1, 1000, "floats of the sketch for each entry that is taken out of it"),
                         choice("tables", {"5", "3", "1"}, "the sketch's rows, of which the median counts"),
                         real("momentum", "0.9", 0, 0.999, "m, the factor of a momentum that the optimizer then must not have")};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<FetchSgd>(sketching_of(values));
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    const Sketching sketching = sketching_of(values);
    claims.lossless = sketching.sends_all();
    claims.conserves = claims.lossless;
    claims.bits = 32 * std::min(1.0, sketching.density * sketching.sketch);
    // An estimate's noise has 1 to 1.5 / (density sketch) times an entry's energy, and the largest are 8 to 13 times that.
    claims.lost = 1 + 20 / sketching.sketch;
    claims.remembers = true;
    claims.largest = 1e30;  // sums of up to a whole chunk's values add up over steps
    return claims;
  };
  row.trials.further = {"density=0.05,sketch=4,tables=3", "density=0.02,tables=1,momentum=0", "density=0.1"};
  return row;
}

}  // namespace thinwire
