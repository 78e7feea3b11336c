#include "compressors/quantizers/qsgd.h"
#include "compressors/shared/row.h"

namespace thinwire {
namespace {

Qsgd::Travel travel_of(const std::string& text) {
  if (text == "sum") return Qsgd::Travel::kSum;
  if (text == "auto") return Qsgd::Travel::kAuto;
  return text == "scatter" ? Qsgd::Travel::kScatter : Qsgd::Travel::kGather;
}

}  // namespace

Row qsgd_row() {
  Row row;
  row.info = {.name = "qsgd",
              .family = Family::kLevels,
              .description = "QSGD, even levels at random: 2^bits - 1 levels, to which values are rounded without bias",
              .bits = "2 to 8",
              .wire_id = Qsgd::kWireId,
              .wire_version = Qsgd::kWireVersion,
              .aggregation = Aggregation::kGather,
              .unbiased = true,
              .reference = "Alistarh et al., NeurIPS 2017, arXiv 1610.02132"};
  row.info.sizes = {"bits", "norm=l2,bits"};
  row.info.parameters = {
      whole_number("bits", "4", 2, 8, "bits an entry; 2^(bits-1) - 1 levels of each sign"),
      whole_number("bucket", "512", 64, kChunkElements, "entries that share a norm, a multiple of 64"),
      choice("norm", {"max", "l2"}, "what the levels are shares of: the bucket's largest magnitude, or its Euclidean norm"),
      feedback("off"),
      choice("coding", {"fixed", "entropy", "elias"},
             "fixed: as many bits for each number of a level; entropy: as many as its frequency in the chunk is worth; elias: Elias's code of levels, or of "
             "gaps and levels, as published; the latter two in messages of any length"),
      choice("reduce", {"auto", "gather", "scatter", "sum"},
             "gather, scatter: each worker's code is decoded by itself; sum: norms are shared, so that levels "
             "add up in all-reduce; auto: gather or sum, whichever sends less by fixed lengths; what is coded is gathered")};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<Qsgd>(Qsgd::Options{.bits = static_cast<int>(values.integer("bits")),
                                                .bucket = static_cast<std::size_t>(values.integer("bucket")),
                                                .norm = values.choice("norm") == "l2" ? Qsgd::Norm::kL2 : Qsgd::Norm::kMax,
                                                .travel = travel_of(values.choice("reduce")),
                                                .feedback = values.choice("feedback") == "on",
                                                .coding = coding_of(values)});
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    if (values.choice("reduce") == "sum")
      claims.aggregation = Aggregation::kLinear;
    else
      claims.bits = bits_sent(static_cast<double>(values.integer("bits")) + 32.0 / static_cast<double>(values.integer("bucket")), values.choice("reduce"));
    return claims;
  };
  row.trials.further = {"bits=2,feedback=on,reduce=scatter", "bits=5,feedback=on,reduce=sum", "bits=3,coding=elias,feedback=on,reduce=scatter"};
  return row;
}

}  // namespace thinwire
