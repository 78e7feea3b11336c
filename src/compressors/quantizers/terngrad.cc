// TernGrad: -1, 0 or 1 times a chunk's largest magnitude, at random such that the expectation is exact.
// Source: Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep learning", NeurIPS 2017: s = max |g|,
// where what lies beyond clip = 2.5 standard deviations was cut off before (section 3.4), which is a bias; here of chunks, published of
// layers. The numbers of three levels take two bits. Published scalers are shared, so that levels add up: qsgd:bits=2,reduce=sum does that.
#include "compressors/quantizers/levels.h"
#include "compressors/shared/row.h"

namespace thinwire {

Row terngrad_row() {
  constexpr std::uint8_t kWireId = 49;
  Row row;
  row.info = {.name = "terngrad",
              .family = Family::kLevels,
              .description = "TernGrad: -1, 0 or 1 times the chunk's largest magnitude, at random",
              .bits = "2",
              .wire_id = kWireId,
              .wire_version = Levels::kWireVersion,
              .aggregation = Aggregation::kGather,
              .reference = "Wen et al., NeurIPS 2017, arXiv 1705.07878"};
  row.info.parameters = {real("clip", "2.5", 0, 1000, "standard deviations beyond which values are cut off; 0: none, without bias"),
                         coding(), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<Levels>(Levels::Options{.name = "terngrad",
                                                    .wire_id = kWireId,
                                                    .levels = {-1, 0, 1},
                                                    .rounding = Rounding::kRandom,
                                                    .clip = values.real("clip"),
                                                    .coding = coding_of(values),
                                                    .reduce = reduce_of(values.choice("reduce"))});
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    claims.unbiased = values.real("clip") == 0;
    claims.bits = bits_sent(2, values.choice("reduce"));
    claims.lost = 2;
    return claims;
  };
  row.trials.further = {"clip=0", "clip=0,reduce=scatter"};
  return row;
}

}  // namespace thinwire
