// DGC, deep gradient compression: every worker accumulates its own momentum and sends the largest entries of what that adds up to.
// Source: Lin, Han, Mao, Wang, Dally: "Deep gradient compression: reducing the communication bandwidth for distributed training", ICLR
// 2018, algorithm 4. Symbols: W workers; G the gradient, u the momentum with factor m (`momentum`), v what was not sent yet. Of each
// chunk of the grid:
//
//   G <- G min(1, c W^-1/2 / |G|)         local clipping (`clip`), published for the whole gradient
//   u <- m u + G                          momentum correction
//   v <- v + u
//   the largest entries of v are sent; there u and v become 0: momentum factor masking
//
// v is the residual, and u a memory of its own (element_memory.h). What is sent is what topk sends, and so is what is averaged: dgc with
// momentum=0 is topk. With reduce=scatter what the second encoding of a mean loses is back in its owner's v, and u stays there. In the
// first `warmup` steps of a parameter density is no less than 1/4, then 1/16, 1/64, 1/256: each for a quarter of them.
//
// The momentum is part of the optimizer. dgc takes its place: the optimizer's own must be 0 (SGD without momentum), or gradients
// are accumulated twice. So the mean is none of gradients, and no claim of conservation is made: a gradient counts 1/(1-m) times in all,
// less what masking forgets. A step that fails leaves u as it was.
//
// Where nobody has any gradient the momentum goes on, as it does in an optimizer.
#include <algorithm>
#include <cmath>
#include <memory>

#include "compressors/shared/element_memory.h"
#include "compressors/shared/message.h"
#include "compressors/shared/row.h"
#include "compressors/sparsifiers/density.h"
#include "compressors/sparsifiers/topk.h"
#include "kernels/rows.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kWireId = 47;

class Dgc : public Compressor {
 public:
  struct Options {
    TopK::Options sent;
    float momentum = 0;
    double clip = 0;
  };
  explicit Dgc(const Options& options) : sent_(options.sent), momentum_(options.momentum), clip_(options.clip) {}

  bool chooses_by_link() const override { return sent_.chooses_by_link(); }
  bool remembers_elements() const override { return true; }
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& parameter, std::uint64_t /*chunk*/) const override {
    return std::make_unique<ElementMemory>(parameter.elements());
  }
  Exchange exchange(Work& work, Context& context) const override;

 private:
  TopK sent_;
  float momentum_;
  double clip_;
};

// topk exchanges u, and keeps v.
Exchange Dgc::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  const double longest = clip_ / std::sqrt(context.world_size());
  const auto sums = context.scratch().take<float>(work.elements);  // u, then its mean
  for_each_piece(work, context, [&](const Piece& piece, std::size_t, std::size_t) {
    const auto u = sums.subspan(piece.offset, piece.elements()), kept = ElementMemory::after(piece);
    const kernels::Opened gradient = read_values(piece.gradient, work.gradient_scale, {}, u);
    const double length = clip_ > 0 && gradient.sum.finite ? std::sqrt(kernels::squared_norm(u)) : 0;
    if (length > longest) kernels::multiply(u, static_cast<float>(longest / length));
    kernels::add_scaled(u, ElementMemory::before(piece), momentum_);
    std::ranges::copy(u, kept.begin());
  });
  Work of_sums = with_gradients(work, sums, context);
  Exchange sending = sent_.exchange(of_sums, context);
  co_await sending;
  if (context.any_non_finite) co_return;
  for_each_piece(work, context, [&](const Piece& piece, std::size_t, std::size_t) {
    const auto u = ElementMemory::after(piece);
    for (std::size_t i = 0; i < u.size(); ++i) u[i] = piece.next_residual[i] == 0 ? 0 : u[i];
    store_mean(sums.subspan(piece.offset, piece.elements()), work.gradient_scale, piece.gradient, piece.next_residual);
  });
}

}  // namespace

Row dgc_row() {
  Row row;
  row.info = {.name = "dgc",
              .family = Family::kSparsifiers,
              .description = "DGC, top-k of a worker's momentum: momentum correction, masking and clipping, and a density that descends in "
                             "the first steps; wants an optimizer without momentum",
              .bits = "0.41 at 1 %",
              .wire_id = kWireId,
              .wire_version = TopK::kWireVersion,
              .aggregation = Aggregation::kGather,
              .reference = "Lin, Han, Mao, Wang, Dally, ICLR 2018, arXiv 1712.01887"};
  row.info.sizes = {};  // its result is no gradient
  row.info.parameters = {
      density_parameter(), real("momentum", "0.9", 0, 0.999, "m, the factor of a momentum that the optimizer then must not have"),
      real("clip", "0", 0, 1e30, "c: each worker's chunks are cut down to this length divided by the root of the workers; 0: not at all"),
      whole_number("warmup", "0", 0, 1e6, "steps in which density comes down, from 1/4"),
      choice("feedback", {"on"}, "what was not sent is added up, as part of the method"), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<Dgc>(Dgc::Options{.sent = {.name = "dgc",
                                                       .wire_id = kWireId,
                                                       .density = values.real("density"),
                                                       .warm_up = static_cast<std::uint64_t>(values.integer("warmup")),
                                                       .reduce = reduce_of(values.choice("reduce"))},
                                              .momentum = static_cast<float>(values.real("momentum")),
                                              .clip = values.real("clip")});
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    const double density = values.integer("warmup") > 0 ? std::max(values.real("density"), 0.25) : values.real("density");
    claims.bits = bits_sent(entry_bits(density, SentAs::kFloat32), values.choice("reduce"));
    claims.lost = 1;
    claims.conserves = false;
    claims.remembers = true;
    claims.largest = 1e34;  // gradients add up
    return claims;
  };
  row.trials.further = {"density=0.5", "density=0.1,clip=0.5,reduce=scatter", "warmup=8,momentum=0.5", "momentum=0"};
  return row;
}

}  // namespace thinwire
