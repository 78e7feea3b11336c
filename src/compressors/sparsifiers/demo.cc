// DeMo: top-k of a cosine transform: what moves fast in a gradient's spectrum travels, and the rest waits.
// Source: Peng, Quesnelle, Kingma: "DeMo: decoupled momentum optimization", 2024, algorithm 1: the momentum m <- beta m + g is cut into
// chunks, transformed by a DCT-II, the k largest coefficients of each chunk are sent and taken off m. Published chunks are squares of
// matrices, transformed along both sides; here runs of 64 entries, as they lie in memory, of a chunk of the grid, of whose n coefficients
// the ceil(density n) largest are sent.
//
// The residual is the decoupled momentum of beta = 1: error feedback. A beta below 1 would make all workers forget what was not sent, and
// what is sent and what stays would no more add up to the gradients. The sign that DeMo takes of the mean is its optimizer's, and not taken
// here.
//
// A code is topk's, of coefficients. Entries beyond 2^120 are sent as that, so that no sum leaves the range of floats.
// Memory passes: topk's; encode transforms each chunk in the cache, and decode transforms a chunk's sum of coefficients back, once for all
// workers.
#include "compressors/shared/row.h"
#include "compressors/sparsifiers/cosines.h"
#include "compressors/sparsifiers/density.h"
#include "compressors/sparsifiers/topk.h"

namespace thinwire {

Row demo_row() {
  constexpr std::uint8_t kWireId = 46;
  Row row;
  row.info = {.name = "demo",
              .family = Family::kSparsifiers,
              .description = "DeMo: the largest coefficients of a cosine transform of 64 entries each, of chunks of up to 32768 entries, as float32 "
                             "or bfloat16, with their places; feedback instead of a momentum",
              .bits = "0.41 at 1 %",
              .wire_id = kWireId,
              .wire_version = TopK::kWireVersion,
              .aggregation = Aggregation::kGather,
              .contractive = true,
              .reference = "Peng, Quesnelle, Kingma, 2024, arXiv 2411.19870"};
  row.info.sizes = {"density", "values=bf16,density"};
  row.info.parameters = {density_parameter(), values_parameter(), feedback("on"), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<TopK>(TopK::Options{.name = "demo",
                                                .wire_id = kWireId,
                                                .basis = TopK::Basis::kCosines,
                                                .density = values.real("density"),
                                                .values = sent_as(values),
                                                .reduce = reduce_of(values.choice("reduce"))});
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    const double density = values.real("density");
    claims.bits = bits_sent(entry_bits(density, sent_as(values)), values.choice("reduce"));
    claims.lost = 1 - density;
    claims.smallest = 0x1p-110;  // smaller ones are rounded as denormals are, a sum of coefficients otherwise than each of them
    claims.largest = static_cast<double>(cosines::kLargest);
    return claims;
  };
  row.trials.further = {"density=0.5", "density=0.1,values=bf16,reduce=scatter", "density=1", "density=0.005"};
  return row;
}

}  // namespace thinwire
