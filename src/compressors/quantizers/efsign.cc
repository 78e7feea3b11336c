// EF-signSGD: a chunk's mean magnitude, and the sign of every entry; error feedback keeps the rest.
// Source: Karimireddy, Rebjock, Stich, Jaggi, "Error feedback fixes signSGD and other gradient compression schemes", ICML 2019, algorithm
// 2: (|p|_1 / n) sign(p), here of chunks, published of layers. A zero counts as negative. It is a contraction by as little as 1/n of the
// energy, where one value outweighs all others: too little to be claimed.
#include "compressors/quantizers/levels.h"
#include "compressors/shared/row.h"

namespace thinwire {

Row efsign_row() {
  constexpr std::uint8_t kWireId = 48;
  Row row;
  row.info = {.name = "efsign",
              .family = Family::kSigns,
              .description = "EF-signSGD: the sign of every entry, times the chunk's mean magnitude",
              .bits = "1",
              .wire_id = kWireId,
              .wire_version = Levels::kWireVersion,
              .aggregation = Aggregation::kGather,
              .reference = "Karimireddy et al., ICML 2019, arXiv 1901.09847"};
  row.info.parameters = {feedback("on"), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<Levels>(Levels::Options{.name = "efsign",
                                                    .wire_id = kWireId,
                                                    .levels = {-1, 1},
                                                    .norm = Norm::kMeanMagnitude,
                                                    .reduce = reduce_of(values.choice("reduce"))});
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    claims.bits = bits_sent(1, values.choice("reduce"));
    return claims;
  };
  return row;
}

}  // namespace thinwire
