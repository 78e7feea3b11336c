#include "compressors/sparsifiers/topk.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "compressors/shared/row.h"
#include "compressors/sparsifiers/cosines.h"
#include "compressors/sparsifiers/density.h"
#include "core/scratch.h"
#include "kernels/selecting.h"
#include "thinwire/errors.h"

namespace thinwire {

std::size_t TopK::kept(const Piece& piece) const {
  double density = options_.density;
  // Powers of two, which are the same on every processor.
  if (piece.step < options_.warm_up)
    density = std::max(density, std::ldexp(1.0, -2 * (1 + static_cast<int>(4 * piece.step / options_.warm_up))));
  return kept_entries(density, piece.elements());
}

std::size_t TopK::most_bytes(const Piece& piece) const { return entries(piece).bytes(); }

std::size_t TopK::room_bytes(const Piece& piece, std::size_t /*codes*/) const {
  const std::size_t selecting = (kernels::selecting_room(piece.elements()) + kept(piece)) * sizeof(std::uint16_t);
  return selecting + (options_.basis == Basis::kCosines ? 2 * piece.elements() * sizeof(float) : 0);
}

std::size_t TopK::encode_piece(const Piece& piece, Pass /*pass*/, std::span<float> values, const kernels::Magnitudes& /*magnitudes*/,
                               std::span<std::byte> code, std::span<std::byte> room) const {
  std::span<const float> entries_of = values;
  if (options_.basis == Basis::kCosines) {
    for (float& value : values) value = std::clamp(value, -cosines::kLargest, cosines::kLargest);
    const auto coefficients = carve<float>(room, values.size());
    cosines::transform(values, coefficients);
    entries_of = coefficients;
  }
  const auto selecting = carve<std::uint16_t>(room, kernels::selecting_room(values.size()));
  const auto taken = carve<std::uint16_t>(room, kept(piece));
  kernels::select_largest(entries_of, taken, selecting);
  entries(piece).write(entries_of, taken, code);
  return code.size();
}

// All zeros is a chunk that was left out.
float TopK::check(std::span<const std::byte> code, const Piece& piece) const {
  const float largest = entries(piece).check(code, options_.name).value_or(0);
  if (options_.basis == Basis::kEntries) return largest;
  if (largest > cosines::kLargestCoefficient)
    throw PayloadError(std::string("a chunk of ") + options_.name + " has a coefficient of the magnitude " + std::to_string(largest) +
                       "; no more than " + std::to_string(cosines::kLargestCoefficient) + " is possible");
  return cosines::largest_entry(largest);
}

void TopK::decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
                  std::span<std::byte> room) const {
  if (options_.basis == Basis::kEntries) {
    if (!add) std::ranges::fill(values, 0.0f);
    return entries(piece).add(code, weight, values);
  }
  const auto decoded = carve<float>(room, values.size());
  decode_sum(std::span(&code, 1), piece, weight, add ? decoded : values, room);
  if (add) std::ranges::transform(values, decoded, values.begin(), std::plus());
}

// Coefficients are added up before they are transformed back.
void TopK::decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& piece, float weight, std::span<float> values,
                      std::span<std::byte> room) const {
  if (options_.basis == Basis::kEntries) return Codec::decode_sum(codes, piece, weight, values, room);
  const auto coefficients = carve<float>(room, values.size());
  std::ranges::fill(coefficients, 0.0f);
  for (const auto code : codes) entries(piece).add(code, weight, coefficients);
  cosines::transform_back(coefficients, values);
}

Row topk_row() {
  constexpr std::uint8_t kWireId = 40;
  Row row;
  row.info = {.name = "topk",
              .family = Family::kSparsifiers,
              .description = "top-k, the largest magnitudes: of each chunk of up to 32768 entries, as float32 or bfloat16, with their "
                             "places; published for each tensor",
              .bits = "0.41 at 1 %",
              .wire_id = kWireId,
              .wire_version = TopK::kWireVersion,
              .aggregation = Aggregation::kGather,
              .contractive = true,
              .reference = "Stich, Cordonnier, Jaggi, NeurIPS 2018, arXiv 1809.07599; places: Elias, J. ACM 21, 1974"};
  row.info.sizes = {"density", "values=bf16,density"};
  row.info.parameters = {density_parameter(), values_parameter(), feedback("on"), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<TopK>(TopK::Options{.name = "topk",
                                                .wire_id = kWireId,
                                                .density = values.real("density"),
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
