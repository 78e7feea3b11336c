#include "compressors/sparsifiers/topk.h"

#include <algorithm>

#include "compressors/shared/row.h"
#include "compressors/sparsifiers/density.h"
#include "core/scratch.h"
#include "kernels/selecting.h"

namespace thinwire {

std::size_t TopK::kept(const Piece& piece) const { return kept_entries(options_.density, piece.elements()); }

std::size_t TopK::most_bytes(const Piece& piece) const { return entries(piece).bytes(); }

std::size_t TopK::room_bytes(const Piece& piece, std::size_t /*codes*/) const {
  return (kernels::selecting_room(piece.elements()) + kept(piece)) * sizeof(std::uint16_t);
}

std::size_t TopK::encode_piece(const Piece& piece, Pass /*pass*/, std::span<float> values, const kernels::Magnitudes& /*magnitudes*/,
                               std::span<std::byte> code, std::span<std::byte> room) const {
  const auto selecting = carve<std::uint16_t>(room, kernels::selecting_room(values.size()));
  const auto taken = carve<std::uint16_t>(room, kept(piece));
  kernels::select_largest(values, taken, selecting);
  entries(piece).write(values, taken, code);
  return code.size();
}

// All zeros is a chunk that was left out.
float TopK::check(std::span<const std::byte> code, const Piece& piece) const { return entries(piece).check(code, "topk").value_or(0); }

void TopK::decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
                  std::span<std::byte> /*room*/) const {
  if (!add) std::ranges::fill(values, 0.0f);
  entries(piece).add(code, weight, values);
}

Row topk_row() {
  Row row;
  row.info = {.name = "topk",
              .family = Family::kSparsifiers,
              .description = "top-k, the largest magnitudes: of each chunk of up to 32768 entries, as float32 or bfloat16, with their "
                             "places; published for each tensor",
              .bits = "0.41 at 1 %",
              .wire_id = TopK::kWireId,
              .wire_version = TopK::kWireVersion,
              .aggregation = Aggregation::kGather,
              .contractive = true,
              .reference = "Stich, Cordonnier, Jaggi, NeurIPS 2018, arXiv 1809.07599; places: Elias, J. ACM 21, 1974"};
  row.info.parameters = {density_parameter(), values_parameter(), feedback("on"), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<TopK>(TopK::Options{.density = values.real("density"),
                                                .values = sent_as(values),
                                                .reduce = reduce_of(values.choice("reduce"))});
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    const double density = values.real("density");
    claims.bits = bits_sent(entry_bits(density, sent_as(values)), values.choice("reduce"));
    claims.lost = 1 - density;
    return claims;
  };
  row.trials.further = {"density=0.5", "density=0.1,values=bf16,reduce=scatter", "density=1,values=bf16", "density=0.001",
                        "density=1,reduce=scatter"};
  return row;
}

}  // namespace thinwire
