// EF21: every worker keeps an estimate of its gradient, which all know by what it has sent, and sends the largest entries of the difference.
// Source: Richtarik, Sokolov, Fatkhullin: "EF21: a new, simpler, theoretically better, and practically faster error feedback", NeurIPS 2021,
// algorithm 2, with C = top-k. Symbols: W workers, G_i the gradient of worker i, g_i its estimate, g = mean of g_i, which is the result:
//
//   c_i <- C(G_i - g_i);   g_i <- g_i + c_i;   g <- g + mean of c_i
//
// At first g_i = 0, so that the first step is topk's: g_i = C(G_i), as published. There is no sum of what was not sent: what is not sent
// of a gradient is forgotten once the next one is there, and errors do not grow with a learning rate. In return the result is a gradient
// that lags behind, sent once and used in every step until it is corrected; so it counts as often as it is used, and no claim of
// conservation is made.
//
// -g_i is the residual, so that what a codec opens, gradient plus residual, is the difference, and so that other workers than before begin
// with the mean of g_i, which is g. g is a memory of every element (element_memory.h), the same on all workers. A step that fails leaves
// both: its mean could not be added to -g_i, so the old residual is kept. What is sent is what topk sends, and so is what is averaged; with
// reduce=scatter what the second encoding of a mean loses is taken off its owner's g_i, so that g stays the mean.
//
// Memory passes beyond topk's: encode copies the gradient; decode reads gradient, residual and g once more and writes the latter two.
// Where nobody has any gradient nothing is sent, and the result is g.
#include <algorithm>
#include <memory>

#include "compressors/shared/element_memory.h"
#include "compressors/shared/message.h"
#include "compressors/shared/row.h"
#include "compressors/sparsifiers/density.h"
#include "compressors/sparsifiers/topk.h"
#include "kernels/rows.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kWireId = 63;

class Ef21 : public Compressor {
 public:
  explicit Ef21(const TopK::Options& sent) : sent_(sent) {}

  bool chooses_by_link() const override { return sent_.chooses_by_link(); }
  bool remembers_elements() const override { return true; }
  bool residual_is_unsent() const override { return false; }
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& parameter, std::uint64_t /*chunk*/) const override {
    return std::make_unique<ElementMemory>(parameter.elements());
  }
  Exchange exchange(Work& work, Context& context) const override;

 private:
  TopK sent_;
};

Exchange Ef21::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  const auto values = context.scratch().take<float>(work.elements);  // gradients, then the mean of c_i
  for_each_piece(work, context, [&](const Piece& piece, std::size_t, std::size_t) {
    read_values(piece.gradient, work.gradient_scale, {}, values.subspan(piece.offset, piece.elements()));
  });
  Work differences = with_gradients(work, values, context);
  Exchange sending = sent_.exchange(differences, context);
  co_await sending;
  if (context.any_non_finite) co_return;
  for_each_piece(work, context, [&](const Piece& piece, std::size_t, std::size_t) {
    const auto room = ElementMemory::after(piece), left = piece.next_residual;
    read_values(piece, work, room);  // G_i - g_i, of which `left` was not sent
    for (std::size_t i = 0; i < room.size(); ++i) left[i] = piece.residual[i] - (room[i] - left[i]);
    std::ranges::copy(ElementMemory::before(piece), room.begin());
    kernels::add_scaled(room, values.subspan(piece.offset, piece.elements()), 1.0f);
    store_mean(room, work.gradient_scale, piece.gradient, {});
  });
}

}  // namespace

Row ef21_row() {
  Row row;
  row.info = {.name = "ef21",
              .family = Family::kSparsifiers,
              .description = "EF21, top-k of differences: the largest entries of what a gradient differs from its estimate, which all "
                             "workers keep; no residual that grows, and a result that lags behind",
              .bits = "0.41 at 1 %",
              .wire_id = kWireId,
              .wire_version = TopK::kWireVersion,
              .aggregation = Aggregation::kGather,
              .reference = "Richtarik, Sokolov, Fatkhullin, NeurIPS 2021, arXiv 2106.05203"};
  row.info.sizes = {};  // its result is no gradient of one step
  row.info.parameters = {density_parameter(), values_parameter(), choice("feedback", {"on"}, "estimates are kept, as part of the method"),
                         reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<Ef21>(TopK::Options{.name = "ef21",
                                                .wire_id = kWireId,
                                                .density = values.real("density"),
                                                .values = sent_as(values),
                                                .reduce = reduce_of(values.choice("reduce"))});
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    claims.bits = bits_sent(entry_bits(values.real("density"), sent_as(values)), values.choice("reduce"));
    claims.lost = 1;
    claims.conserves = false;
    claims.remembers = true;
    claims.largest = 1e38;  // a gradient and an estimate of opposite signs
    return claims;
  };
  row.trials.further = {"density=0.5", "density=0.1,values=bf16,reduce=scatter", "density=1"};
  return row;
}

}  // namespace thinwire
