// DoReFa's gradients: 2^bits levels, evenly spread from minus to plus a chunk's largest magnitude, at random; 0 is none of them.
// Source: Zhou et al., "DoReFa-Net: training low bitwidth convolutional neural networks with low bitwidth gradients", 2016, equation 12:
// k-bit quantization of g / (2 max |g|) + 1/2 with noise of a step's width; here of chunks, published of layers' samples.
#include "compressors/quantizers/levels.h"
#include "compressors/shared/row.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kWireId = 52;

MadeCompressor make(const SpecValues& values, MadeCompressor /*next*/) {
  const int steps = (1 << values.integer("bits")) - 1;
  std::vector<float> levels;
  for (int i = 0; i <= steps; ++i) levels.push_back(static_cast<float>(2 * i - steps));
  return std::make_unique<Levels>(Levels::Options{
      .name = "dorefa", .wire_id = kWireId, .levels = levels, .rounding = Rounding::kRandom, .coding = coding_of(values),
      .reduce = reduce_of(values.choice("reduce"))});
}

Claims claims(const SpecValues& values, Claims claims) {
  claims.bits = bits_sent(static_cast<double>(values.integer("bits")), values.choice("reduce"));
  claims.lost = 3;  // one bit: all entries become as large as the largest
  return claims;
}

}  // namespace

Row dorefa_row() {
  Row row;
  row.info = {.name = "dorefa",
              .family = Family::kLevels,
              .description = "DoReFa's gradients: 2^bits even levels up to the chunk's largest magnitude, at random",
              .bits = "1 to 8",
              .wire_id = kWireId,
              .wire_version = Levels::kWireVersion,
              .aggregation = Aggregation::kGather,
              .unbiased = true,
              .reference = "Zhou et al., 2016, arXiv 1606.06160"};
  row.info.sizes = {"bits"};
  row.info.parameters = {whole_number("bits", "4", 1, 8, "bits an entry"), coding(), reduce()};
  row.make = make;
  row.claims = claims;
  return row;
}

}  // namespace thinwire
