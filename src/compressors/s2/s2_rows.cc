// The rows of S2 and of what it is compared to.
#include <algorithm>

#include "compressors/s2/s2.h"
#include "compressors/s2/sparse_baselines.h"
#include "compressors/shared/row.h"

namespace thinwire {
namespace {

SpecParameter block(const char* default_value, double minimum) {
  return whole_number("block", default_value, minimum, 1 << 20,
                      minimum > 0 ? "entries of a block" : "entries of a row; 0: a row is one of the first dimension");
}

Claims s2_claims(const SpecValues& values, Claims claims) {
  const S2Mode mode = s2_mode_of(values.choice("mode"));
  if (mode == S2Mode::kExact || mode == S2Mode::kPeel || mode == S2Mode::kSketch) claims.aggregation = Aggregation::kLinear;
  // With feedback, rows that cannot be read off are estimated.
  claims.lossless = mode == S2Mode::kPeel ? values.choice("feedback") != "on" : mode != S2Mode::kSketch;
  // A chain of subtractions adds up what each of them rounds.
  if (mode == S2Mode::kPeel) claims.rounding = 5e-5;
  // An outlier that is sent little by little stays in the residual: two steps' of five workers add up to more than a float.
  if (mode == S2Mode::kPeel || mode == S2Mode::kSketch) claims.largest = 1e37;
  claims.bits = mode == S2Mode::kSketch ? 2 + 32 * values.real("ratio") : mode == S2Mode::kPeel ? 42 : 64;
  return claims;
}

// Each worker's rows, to their owners, and the sums that it owns.
Claims split_claims(const SpecValues& /*values*/, Claims claims) {
  claims.bits = 64;
  return claims;
}

}  // namespace

Row s2_row() {
  Row row;
  row.info = {.name = "s2",
              .family = Family::kRows,
              .description = "S2 Reducer, rows by a bitmap: those that are not zero are summed, gathered, peeled or sketched",
              .bits = "used rows",
              .wire_id = S2::kWireId,
              .aggregation = Aggregation::kGather,
              .contractive = true,
              .reference = "arXiv 2110.02140; ICASSP 2022"};
  row.sends = Sends::kElements;
  row.info.sizes = {};
  row.info.parameters = {
      choice("mode", {"auto", "exact", "gather", "peel", "sketch", "split"},
             "exact: the union's rows summed, or carried by a further stage; gather: each worker's rows to "
             "all; split: rows to owners, sums to all; auto: the cheapest of these, by last step's rows; "
             "peel: rows read off a hash table, in one round; sketch: lossy, a count sketch, shrunk"),
      block("0", 0),
      real("ratio", "0.25", 0.001, 1, "mode=sketch: what the tables take, as a share of the union's rows"),
      choice("tables", {"1", "3", "5"}, "mode=sketch: the sketch's rows, of which the median counts"),
      off_or_on("shrink", "on", "mode=sketch: estimates are made smaller, to be contractive; off: feedback diverges"),
      choice("feedback", {"auto", "off", "on"},
             "error feedback; auto: on for mode=sketch, where something is lost, else what a further stage wants")};
  row.make = [](const SpecValues& values, MadeCompressor next) -> MadeCompressor {
    S2Options options{.mode = s2_mode_of(values.choice("mode")),
                      .block = static_cast<std::uint64_t>(values.integer("block"))};
    options.sketching = {values.real("ratio"), std::stoi(values.choice("tables")), values.choice("shrink") == "on"};
    return std::make_unique<S2>(options, std::move(next));
  };
  row.claims = s2_claims;
  row.trials.further = {"mode=exact/casq:rate=1", "mode=exact/casq:rate=0.25,reduce=scatter"};
  return row;
}

Row coordinates_row() {
  Row row;
  row.info = {.name = "coordinates",
              .family = Family::kRows,
              .description = "all-gather of coordinates: every row that is not zero, with its number in 64 bits",
              .bits = "used rows",
              .wire_id = Coordinates::kWireId,
              .aggregation = Aggregation::kGather,
              .lossless = true,
              .unbiased = true,
              .contractive = true,
              .reference = "what PyTorch's backends do to sum sparse tensors"};
  row.info.parameters = {block("0", 0)};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<Coordinates>(static_cast<std::uint64_t>(values.integer("block")));
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    claims.bits = 32 + 64.0 / static_cast<double>(std::max<std::int64_t>(values.integer("block"), 1));
    return claims;
  };
  return row;
}

Row omnireduce_row() {
  Row row;
  row.info = {.name = "omnireduce",
              .family = Family::kRows,
              .description = "OmniReduce, blocks: those that are not zero go to their owners, who send the sums to all",
              .bits = "used blocks",
              .wire_id = 34,
              .aggregation = Aggregation::kGather,
              .lossless = true,
              .unbiased = true,
              .contractive = true,
              .reference = "OmniReduce: Fei et al., SIGCOMM 2021"};
  row.info.parameters = {block("256", 1)};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<S2>(S2Options{.mode = S2Mode::kSplit, .block = static_cast<std::uint64_t>(values.integer("block"))},
                                nullptr);
  };
  row.claims = split_claims;
  return row;
}

Row sparcml_row() {
  Row row;
  row.info = {.name = "sparcml",
              .family = Family::kRows,
              .description = "SparCML, sparse all-reduce: of single entries, split and gathered; it turns dense where that is shorter",
              .bits = "used entries",
              .wire_id = SparCml::kWireId,
              .aggregation = Aggregation::kGather,
              .lossless = true,
              .unbiased = true,
              .contractive = true,
              .reference = "SparCML: Renggli et al., SC 2019, SSAR_Split_allgather and DSAR"};
  row.make = [](const SpecValues&, MadeCompressor) -> MadeCompressor { return std::make_unique<SparCml>(); };
  row.claims = split_claims;
  return row;
}

}  // namespace thinwire
