// Threshold: all entries whose magnitudes are not below a given one, with their places; error feedback keeps the rest.
// Source: Dutta et al.: "On the discrepancy between the theoretical analysis and practical implementations of compressed communication for
// distributed deep learning", AAAI 2020; before it Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
// Interspeech 2015, which sends t for each of them where here their values are sent. No entry of a residual is t or more, whatever the
// gradient: an absolute bound, and none of a share of the energy, as nothing is sent of a chunk that is below t everywhere.
//
// Memory passes: encode reads gradient and residual once, and looks at each chunk once more in the cache; decode writes zeros and a sum for
// each entry; what own codes leave is written as they are encoded.
#include <limits>

#include "compressors/shared/row.h"
#include "compressors/sparsifiers/chosen.h"
#include "kernels/selecting.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kWireId = 42;

class Threshold : public ChosenEntries {
 public:
  Threshold(float least, const Options& options) : ChosenEntries(options), least_(least) {}
  bool depends_on_scale() const override { return true; }

 private:
  std::size_t choose(std::span<const float> values, const kernels::Magnitudes& /*magnitudes*/,
                     std::span<std::uint16_t> room) const override {
    return kernels::select_from(values, least_, room);
  }

  float least_;
};

}  // namespace

Row threshold_row() {
  Row row;
  row.info = {.name = "threshold",
              .family = Family::kSparsifiers,
              .description = "threshold: all magnitudes that are not below a given one, as float32 or bfloat16, with their places",
              .bits = "by values",
              .wire_id = kWireId,
              .wire_version = ChosenEntries::kWireVersion,
              .aggregation = Aggregation::kGather,
              .reference = "Dutta et al., AAAI 2020, arXiv 1911.08250; Strom, Interspeech 2015"};
  constexpr double kMost = std::numeric_limits<float>::max();
  row.info.sizes = {};  // a threshold that suits one gradient means nothing to another
  row.info.parameters = {real("least", "0.01", 0, kMost, "the least magnitude that is sent"), values_parameter(), feedback("on"), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<Threshold>(static_cast<float>(values.real("least")),
                                       ChosenEntries::Options{.name = "threshold",
                                                              .wire_id = kWireId,
                                                              .values = sent_as(values),
                                                              .reduce = reduce_of(values.choice("reduce"))});
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    claims.lossless = values.real("least") == 0 && values.choice("values") == "fp32";
    claims.bits = bits_sent(entry_bits(1, sent_as(values)), values.choice("reduce"));
    return claims;
  };
  row.trials.further = {"least=0", "least=0,reduce=scatter", "least=0.001,values=bf16,reduce=scatter"};
  return row;
}

}  // namespace thinwire
