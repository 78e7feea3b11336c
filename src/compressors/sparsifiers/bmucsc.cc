// B-MUCSC: what is next to 0 becomes one cluster, which is not sent; of all else MUCSC's centroids, with places.
// Source: Cui, Su, Zhou, Pan, "Slashing communication traffic in federated learning by transmitting clustered model updates", IEEE JSAC
// 2021, B-MUCSC. Symbols: of a chunk's n entries the k = ceil(density n) largest magnitudes v; centroids as mucsc fits them to v:
//
//   v becomes one of its two neighbours a < c at random, c with probability (v - a)/(c - a), times s = E/(E + V);
//   E = sum of v^2,   V = sum of (c - v)(v - a), the variance.
//
// s is not the paper's, which is without feedback: with few centroids V may be beyond E, and feedback would diverge. Times s the k entries
// lose s V in expectation, which is less than E: a contraction on average. Published for a model's change; here for each chunk.
//
// A code: that of mucsc (levels.h) for the k entries in the order of their places, its centroids times s; then the places (places.h):
// 32 + 32 2^bits + k (bits + 2 + log2(n/k)) bits at most. Gradient and residual are read once, and by decoding.
#include <algorithm>
#include <cmath>

#include "compressors/quantizers/fitted_levels.h"
#include "compressors/quantizers/levels.h"
#include "compressors/shared/row.h"
#include "compressors/sparsifiers/density.h"
#include "compressors/sparsifiers/places.h"
#include "core/scratch.h"
#include "kernels/selecting.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

class BMucsc : public Levels {
 public:
  BMucsc(double density, const Options& options) : Levels(options), density_(density) {}

 private:
  std::size_t most_bytes(const Piece& piece) const override { return Levels::most_bytes(sent(piece)) + places(piece).bytes(); }
  std::size_t room_bytes(const Piece& piece, std::size_t codes) const override {
    const std::size_t selecting = (kernels::selecting_room(piece.elements()) + kept(piece)) * sizeof(std::uint16_t);
    return Levels::room_bytes(sent(piece), codes) + kept(piece) * sizeof(float) + selecting;
  }

  std::size_t encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                           std::span<std::byte> code, std::span<std::byte> room) const override {
    const auto entries = carve<float>(room, kept(piece));
    auto rest = room.subspan(Levels::room_bytes(sent(piece), 1));
    const auto taken = carve<std::uint16_t>(rest, kept(piece));
    kernels::select_largest(values, taken, carve<std::uint16_t>(rest, kernels::selecting_room(values.size())));
    std::ranges::transform(taken, entries.begin(), [&](std::uint16_t place) { return values[place]; });
    const std::size_t begin = Levels::most_bytes(sent(piece));
    Levels::encode_piece(sent(piece), pass, entries, magnitudes, code.first(begin), room);
    places(piece).write(taken, code.subspan(begin));
    return code.size();
  }

  // All zeros is a chunk that was left out.
  float check(std::span<const std::byte> code, const Piece& piece) const override {
    const std::size_t begin = Levels::most_bytes(sent(piece));
    const float largest = Levels::check(code.first(begin), sent(piece));
    if (!places(piece).check(code.subspan(begin)) && largest > 0)
      throw PayloadError("a chunk of bmucsc has values, and no places for them");
    return largest;
  }

  void decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
              std::span<std::byte> room) const override {
    const std::size_t begin = Levels::most_bytes(sent(piece));
    const auto entries = carve<float>(room, kept(piece));
    Levels::decode(code.first(begin), sent(piece), weight, false, entries, room);
    if (!add) std::ranges::fill(values, 0.0f);
    places(piece).read(code.subspan(begin), [&](std::size_t j, std::size_t place) { values[place] += entries[j]; });
  }
  void decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& piece, float weight, std::span<float> values,
                  std::span<std::byte> room) const override {
    Codec::decode_sum(codes, piece, weight, values, room);
  }

  std::size_t kept(const Piece& piece) const { return kept_entries(density_, piece.elements()); }
  PlaceCode places(const Piece& piece) const { return {kept(piece), piece.elements()}; }
  // As long as what is sent of it; it has the chunk's random numbers.
  Piece sent(const Piece& piece) const {
    Piece part = piece;
    part.gradient = piece.gradient.part(0, kept(piece));
    return part;
  }

  double density_;
};

}  // namespace

Row bmucsc_row() {
  constexpr std::uint8_t kWireId = 62;
  Row row;
  row.info = {.name = "bmucsc",
              .family = Family::kSparsifiers,
              .description = "B-MUCSC, centroids of the largest: of each chunk the largest magnitudes, as one of two neighbours "
                             "among centroids fitted to them, at random, and their places",
              .bits = "0.53 at 5 %",
              .wire_id = kWireId,
              .wire_version = Levels::kWireVersion,
              .aggregation = Aggregation::kGather,
              .contractive = true,
              .reference = "Cui et al., IEEE JSAC 2021, arXiv 2105.04153"};
  row.info.sizes = {"density"};
  row.info.parameters = {whole_number("bits", "4", 2, kMostFittedBits, "bits an entry that is sent; a chunk sends up to 2^bits centroids"),
                         density_parameter("0.05"), feedback("on"), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<BMucsc>(values.real("density"),
                                    Levels::Options{.name = "bmucsc",
                                                    .wire_id = kWireId,
                                                    .levels = std::vector<float>(std::size_t{1} << values.integer("bits"), 1.0f),
                                                    .fit = fit_mucsc,
                                                    .rounding = Rounding::kRandom,
                                                    .shrinks = true,
                                                    .reduce = reduce_of(values.choice("reduce"))});
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    const double density = values.real("density"), bits = static_cast<double>(values.integer("bits"));
    claims.on_average = true;
    claims.bits = bits_sent(density * (bits + 2 - std::log2(density)) + 32 * std::exp2(bits) / kChunkElements, values.choice("reduce"));
    claims.lost = 1;  // two bits
    return claims;
  };
  row.trials.further = {"density=0.5", "density=0.1,bits=3,reduce=scatter", "density=1,bits=2", "density=0.02,bits=2"};
  return row;
}

}  // namespace thinwire
