#include "compressors/casq/casq.h"
#include "compressors/casq/casq_rate.h"
#include "compressors/shared/row.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

std::vector<SpecParameter> parameters() {
  return {
      whole_number("bits", "2", 1, kernels::kMaxCodeBits, "bits an entry; 2^bits clusters"),
      whole_number("retrain", "100", 1, 1e9, "steps between trainings of the clusters"),
      choice("signs", {"free", "apart"}, "apart: no cluster holds values of both signs, as published"),
      choice("scope", {"parameter", "block"},
             "block: entries are divided by the mean magnitude of their block of 512, which is sent"),
      choice("precision", {"fp32", "bf16"}, "of what clusters and buckets decode to"),
      real("budget", "0", 0, kernels::kMaxCodeBits,
           "bits an entry over all parameters, which get from 1 to 8 each by what they save; 0: `bits`"),
      real("table", "0", 0, 1, "sketch buckets an entry, beyond one for each cluster"),
      choice("assign", {"rank", "hash"}, "how entries share buckets: by their order, or by a hash, as published"),
      choice("allocate", {"optimal", "entropy", "density", "entropy-centre", "entropy-centre-density"},
             "how clusters share buckets: for the least error, or by a published weight"),
      real("tail", "0", 0, 0.5,
           "share of each sign's values in a cluster of their own, as published with 0.05; 0: none"),
      real("rate", "0", 0, 8,
           "bits an entry, all counted: entropy-coded levels of one step for all parameters; 0: 2^bits clusters"),
      real("second", "0", 0, 8, "with rate= and reduce=scatter, bits an entry of means; 0: as rate"),
      real("weight", "0", 0, 1, "with rate=, parameters' steps are as their root mean square to this power"),
      feedback("on"), reduce()};
}

CasqOptions casq_options(const SpecValues& values) {
  CasqOptions options;
  options.bits = static_cast<int>(values.integer("bits"));
  options.budget = values.real("budget");
  if (options.budget > 0 && options.budget < 1)
    throw ArgumentError("compressor 'casq': budget=" + values.choice("budget") +
                        " is not allowed; it takes 0 or a number from 1 to 8");
  options.retrain = static_cast<std::uint64_t>(values.integer("retrain"));
  options.signs = values.choice("signs") == "apart" ? Signs::kApart : Signs::kFree;
  options.tail = values.real("tail");
  options.table = values.real("table");
  options.assign = values.choice("assign") == "hash" ? BucketAssignment::kHash : BucketAssignment::kRank;
  const std::string& allocate = values.choice("allocate");
  if (allocate == "entropy") options.allocate = Allocation::kEntropy;
  if (allocate == "density") options.allocate = Allocation::kDensity;
  if (allocate == "entropy-centre") options.allocate = Allocation::kEntropyCentre;
  if (allocate == "entropy-centre-density") options.allocate = Allocation::kEntropyCentreDensity;
  options.precision = values.choice("precision") == "bf16" ? Precision::kBfloat16 : Precision::kFloat32;
  options.scope = values.choice("scope") == "block" ? Scope::kBlock : Scope::kParameter;
  options.reduce = reduce_of(values.choice("reduce"));
  return options;
}

// Parameters of fixed-length codes mean nothing where a rate is given, and the other way round.
void check_rate(const SpecValues& values) {
  const bool has_rate = values.real("rate") > 0;
  if (has_rate && values.real("rate") < 0.05)
    throw ArgumentError("compressor 'casq': rate=" + values.choice("rate") +
                        " is not allowed; it takes 0 or a number from 0.05 to 8");
  for (const SpecParameter& parameter : parameters()) {
    const bool of_rate = parameter.name == "second" || parameter.name == "weight";
    const bool of_both = parameter.name == "rate" || parameter.name == "feedback" || parameter.name == "reduce";
    if (of_both || of_rate == has_rate || values.choice(parameter.name) == parameter.default_value) continue;
    throw ArgumentError("compressor 'casq': " + parameter.name + "=" + values.choice(parameter.name) +
                        (has_rate ? " means nothing with rate=: entropy-coded levels have no clusters to choose; leave one of the two out"
                                  : " means nothing without rate=; give one, as in casq:rate=1"));
  }
}

CasqRateOptions rate_options(const SpecValues& values) {
  const double rate = values.real("rate"), second = values.real("second");
  return {.rate = rate, .second = second > 0 ? second : rate, .weight = values.real("weight"),
          .reduce = reduce_of(values.choice("reduce"))};
}

MadeCompressor make(const SpecValues& values, MadeCompressor /*next*/) {
  check_rate(values);
  if (values.real("rate") > 0) return std::make_unique<CasqRate>(rate_options(values));
  return std::make_unique<Casq>(casq_options(values));
}

Claims claims(const SpecValues& values, Claims claims) {
  const double rate = values.real("rate"), budget = values.real("budget"), second = values.real("second");
  claims.remembers = true;  // thresholds of earlier steps, or what codes took in them
  claims.together = rate > 0 || budget > 0;
  const double first = rate > 0 ? rate : budget > 0 ? budget : static_cast<double>(values.integer("bits"));
  // What a worker owns may be all of a short message, whose first steps miss a rate by a part of it.
  claims.bits = 1.4 * (values.choice("reduce") == "gather" ? first : first + (second > 0 ? second : first));
  return claims;
}

}  // namespace

Row casq_row() {
  Row row;
  row.info = {.name = "casq",
              .family = Family::kLevels,
              .description = "cluster-aware sketch quantization: 2^bits clusters a parameter, means of this step; or entropy-coded levels",
              .bits = "0.05 to 8",
              .wire_id = Casq::kWireId,
              .wire_version = Casq::kWireVersion,
              .aggregation = Aggregation::kGather,
              .contractive = true,
              .reference = "CLUSTER 2021; Sci. China Inf. Sci. 66:162102, 2023"};
  row.info.sizes = {"bits", "rate=0.05.."};
  row.info.parameters = parameters();
  row.make = make;
  row.claims = claims;
  row.trials.idle = {"assign", "allocate"};
  row.trials.further = {
      "bits=2,table=0.1",
      "bits=2,table=0.1,feedback=off",
      "bits=3,table=0.05,assign=hash",
      "bits=2,table=0.3,assign=hash,scope=block,precision=bf16",
      "bits=8,table=0.02,scope=block,reduce=scatter",
      "bits=4,signs=apart,tail=0.05,table=0.02,assign=hash,allocate=entropy",
      "bits=2,signs=apart,tail=0.05,table=0.02,assign=hash,allocate=entropy-centre-density",
      "bits=6,tail=0.05,table=0.02,allocate=density",
      "bits=8,signs=apart,tail=0.2,allocate=entropy-centre,table=1",
      "budget=2.5",
      "budget=4,scope=block,precision=bf16,reduce=scatter",
      "bits=1",
      "bits=1,reduce=scatter",
      "bits=8,reduce=scatter",
      "bits=2,table=0.1,reduce=scatter",
      "bits=3,retrain=2",
      "rate=1",
      "rate=0.5",
      "rate=0.25,reduce=scatter",
      "rate=1,reduce=scatter",
      "rate=4,feedback=off",
      "rate=2,feedback=off",
      "rate=1,feedback=off,reduce=scatter,second=2",
      "rate=0.1,reduce=scatter,second=0.5",
      "rate=0.5,weight=0.5"};
  return row;
}

}  // namespace thinwire
