#include "compressors/sparsifiers/topk.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "compressors/shared/row.h"
#include "compressors/sparsifiers/density.h"
#include "core/bytes.h"
#include "core/scratch.h"
#include "kernels/half.h"
#include "kernels/selecting.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

// The largest finite bfloat16 stands for what would be rounded to infinity: the residual keeps the difference.
std::uint16_t finite_bf16_of(float value) {
  const std::uint16_t half = kernels::bf16_of(value);
  return (half & 0x7FFF) == 0x7F80 ? static_cast<std::uint16_t>(half - 1) : half;
}

}  // namespace

std::size_t TopK::kept(const Piece& piece) const { return kept_entries(options_.density, piece.elements()); }

std::size_t TopK::most_bytes(const Piece& piece) const { return kept(piece) * value_bytes() + places(piece).bytes(); }

std::size_t TopK::room_bytes(const Piece& piece, std::size_t /*codes*/) const {
  return (kernels::selecting_room(piece.elements()) + kept(piece)) * sizeof(std::uint16_t);
}

std::size_t TopK::encode_piece(const Piece& piece, Pass /*pass*/, std::span<float> values, const kernels::Magnitudes& /*magnitudes*/,
                               std::span<std::byte> code, std::span<std::byte> room) const {
  const auto selecting = carve<std::uint16_t>(room, kernels::selecting_room(values.size()));
  const auto taken = carve<std::uint16_t>(room, kept(piece));
  kernels::select_largest(values, taken, selecting);
  ByteWriter writer(code);
  for (const std::uint16_t place : taken) {
    if (options_.values == Values::kBfloat16)
      writer.write(finite_bf16_of(values[place]));
    else
      writer.write(values[place]);
  }
  places(piece).write(taken, writer.take(writer.left()));
  return code.size();
}

float TopK::value(std::span<const std::byte> code, std::size_t j) const {
  if (options_.values == Values::kBfloat16) {
    std::uint16_t half;
    std::memcpy(&half, code.data() + j * sizeof half, sizeof half);
    return kernels::value_of_bf16(half);
  }
  float value;
  std::memcpy(&value, code.data() + j * sizeof value, sizeof value);
  return value;
}

float TopK::check(std::span<const std::byte> code, const Piece& piece) const {
  ByteReader reader(code, "a chunk of topk");
  const auto values = reader.take(kept(piece) * value_bytes());
  const bool has_places = places(piece).check(reader.take(reader.left()));
  float largest = 0;
  for (std::size_t j = 0, count = kept(piece); j < count; ++j) {
    const float magnitude = std::abs(value(values, j));
    if (!std::isfinite(magnitude))
      throw PayloadError("a chunk of topk has a value that is not finite, the one numbered " + std::to_string(j));
    largest = std::max(largest, magnitude);
  }
  // All zeros is a chunk that was left out.
  if (!has_places && largest > 0) throw PayloadError("a chunk of topk has values, and no places for them");
  return largest;
}

void TopK::decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
                  std::span<std::byte> /*room*/) const {
  if (!add) std::ranges::fill(values, 0.0f);
  places(piece).read(code.subspan(kept(piece) * value_bytes()),
                     [&](std::size_t j, std::size_t place) { values[place] += weight * value(code, j); });
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
  row.info.sizes = {"density", "values=bf16,density"};
  row.info.parameters = {density_parameter(),
                         choice("values", {"fp32", "bf16"}, "what values are sent as; the residual keeps what rounding loses"),
                         feedback("on"), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    const bool rounds = values.choice("values") == "bf16";
    return std::make_unique<TopK>(TopK::Options{.density = values.real("density"),
                                                .values = rounds ? TopK::Values::kBfloat16 : TopK::Values::kFloat32,
                                                .reduce = reduce_of(values.choice("reduce"))});
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    const double density = values.real("density"), value = values.choice("values") == "bf16" ? 16 : 32;
    claims.bits = bits_sent(density * (value + 2 - std::log2(density)), values.choice("reduce"));
    claims.lost = 1 - density;
    return claims;
  };
  row.trials.further = {"density=0.5", "density=0.1,values=bf16,reduce=scatter", "density=1,values=bf16", "density=0.001",
                        "density=1,reduce=scatter"};
  return row;
}

}  // namespace thinwire
