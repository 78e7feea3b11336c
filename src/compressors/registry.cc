#include "compressors/registry.h"

#include <algorithm>
#include <vector>

#include "compressors/casq/casq.h"
#include "compressors/casq/casq_rate.h"
#include "compressors/gradiveq/gradiveq.h"
#include "compressors/gradiveq/gradiveq_follow.h"
#include "compressors/quantizers/half.h"
#include "compressors/quantizers/none.h"
#include "compressors/quantizers/qsgd.h"
#include "compressors/s2/s2.h"
#include "compressors/s2/sparse_baselines.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

using Kind = SpecParameter::Kind;
using Made = std::unique_ptr<const Compressor>;

struct Row {
  CompressorInfo info;
  // `next` is null unless the row takes a stage and one follows it.
  Made (*make)(const SpecValues& values, Made next);
};

SpecParameter feedback(const char* default_value) {
  return {.name = "feedback", .kind = Kind::kChoice, .default_value = default_value, .choices = {"off", "on"},
          .help = "error feedback: what was not sent is added to the next step's gradient"};
}

SpecParameter reduce() {
  return {.name = "reduce", .kind = Kind::kChoice, .default_value = "gather", .choices = {"auto", "gather", "scatter"},
          .help = "gather: every worker decodes all codes; scatter: owners average and encode again, so that traffic does not "
                  "grow with the workers; auto: whichever is sooner done, by the link if it was measured"};
}

Row none() {
  return {{.name = "none",
           .description = "no compression: float32 values, summed",
           .wire_id = 1,
           .aggregation = Aggregation::kLinear,
           .lossless = true,
           .unbiased = true,
           .contractive = true,
           .parameters = {},
           .reference = "ring all-reduce: Patarasuk and Yuan, JPDC 69, 2009"},
          [](const SpecValues&, Made) -> Made { return std::make_unique<None>(); }};
}

Row half(const char* name, const char* description, std::uint8_t wire_id, ElementType type) {
  return {{.name = name,
           .description = description,
           .wire_id = wire_id,
           .aggregation = Aggregation::kLinear,
           // Beyond 65504 binary16 is infinite, and what is below its least value becomes 0.
           .contractive = type == ElementType::kBfloat16,
           .parameters = {feedback("off")},
           .reference = type == ElementType::kBfloat16 ? "Kalamkar et al., arXiv 1905.12322" : "IEEE 754-2008, binary16"},
          type == ElementType::kBfloat16
              ? [](const SpecValues&, Made) -> Made { return std::make_unique<Half>(ElementType::kBfloat16); }
              : [](const SpecValues&, Made) -> Made { return std::make_unique<Half>(ElementType::kFloat16); }};
}

SpecParameter whole_number(const char* name, const char* default_value, double minimum, double maximum, const char* help) {
  return {.name = name, .kind = Kind::kInteger, .default_value = default_value, .minimum = minimum, .maximum = maximum,
          .choices = {}, .help = help};
}

SpecParameter real(const char* name, const char* default_value, double minimum, double maximum, const char* help) {
  return {.name = name, .kind = Kind::kReal, .default_value = default_value, .minimum = minimum, .maximum = maximum,
          .choices = {}, .help = help};
}

// The first is the default.
SpecParameter choice(const char* name, std::vector<std::string> choices, const char* help) {
  return {.name = name, .kind = Kind::kChoice, .default_value = choices.front(), .choices = choices, .help = help};
}

CasqOptions casq_options(const SpecValues& values) {
  CasqOptions options;
  options.bits = static_cast<int>(values.integer("bits"));
  options.budget = values.real("budget");
  if (options.budget > 0 && options.budget < 1)
    throw ArgumentError("compressor 'casq': budget=" + values.choice("budget") + " is not allowed; it takes 0 or a number from 1 to 8");
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
void check_casq_rate(const SpecValues& values, const CompressorInfo& info) {
  const bool has_rate = values.real("rate") > 0;
  if (has_rate && values.real("rate") < 0.05)
    throw ArgumentError("compressor 'casq': rate=" + values.choice("rate") + " is not allowed; it takes 0 or a number from 0.05 to 8");
  for (const SpecParameter& parameter : info.parameters) {
    const bool of_rate = parameter.name == "second" || parameter.name == "weight";
    const bool of_both = parameter.name == "rate" || parameter.name == "feedback" || parameter.name == "reduce";
    if (of_both || of_rate == has_rate || values.choice(parameter.name) == parameter.default_value) continue;
    throw ArgumentError("compressor 'casq': " + parameter.name + "=" + values.choice(parameter.name) +
                        (has_rate ? " means nothing with rate=: entropy-coded levels have no clusters to choose; leave one of the two out"
                                  : " means nothing without rate=; give one, as in casq:rate=1"));
  }
}

CasqRateOptions casq_rate_options(const SpecValues& values) {
  const double rate = values.real("rate"), second = values.real("second");
  return {.rate = rate, .second = second > 0 ? second : rate, .weight = values.real("weight"), .reduce = reduce_of(values.choice("reduce"))};
}

Row casq();

Made make_casq(const SpecValues& values) {
  static const CompressorInfo info = casq().info;
  check_casq_rate(values, info);
  if (values.real("rate") > 0) return std::make_unique<CasqRate>(casq_rate_options(values));
  return std::make_unique<Casq>(casq_options(values));
}

Row casq() {
  return {{.name = "casq",
           .description = "cluster-aware sketch quantization: 2^bits clusters a parameter, means of this step",
           .wire_id = Casq::kWireId,
           .wire_version = Casq::kWireVersion,
           .aggregation = Aggregation::kGather,
           .contractive = true,
           .parameters = {whole_number("bits", "2", 1, kernels::kMaxCodeBits, "bits an entry; 2^bits clusters"),
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
                          feedback("on"), reduce()},
           .reference = "CLUSTER 2021; Sci. China Inf. Sci. 66:162102, 2023"},
          [](const SpecValues& values, Made) -> Made { return make_casq(values); }};
}

SpecParameter block(const char* default_value, double minimum) {
  return {.name = "block", .kind = Kind::kInteger, .default_value = default_value, .minimum = minimum, .maximum = 1 << 20,
          .choices = {}, .help = minimum > 0 ? "entries of a block" : "entries of a row; 0: a row is one of the first dimension"};
}

Row s2() {
  return {{.name = "s2",
           .description = "S2 Reducer: rows that are not zero, found by a bitmap and summed, gathered, peeled or sketched",
           .wire_id = S2::kWireId,
           .aggregation = Aggregation::kLinear,
           .contractive = true,
           .unit = Unit::kRow,
           .takes_stage = true,
           .parameters = {{.name = "mode", .kind = Kind::kChoice, .default_value = "auto",
                           .choices = {"auto", "exact", "gather", "peel", "sketch", "split"},
                           .help = "exact: the union's rows summed, or carried by a further stage; gather: each worker's rows to "
                                   "all; split: rows to owners, sums to all; auto: the cheapest of these, by last step's rows; "
                                   "peel: rows read off a hash table, in one round; sketch: lossy, a count sketch, shrunk"},
                          block("0", 0),
                          {.name = "ratio", .kind = Kind::kReal, .default_value = "0.25", .minimum = 0.001, .maximum = 1,
                           .choices = {}, .help = "mode=sketch: what the tables take, as a share of the union's rows"},
                          {.name = "tables", .kind = Kind::kChoice, .default_value = "1", .choices = {"1", "3", "5"},
                           .help = "mode=sketch: the sketch's rows, of which the median counts"},
                          {.name = "shrink", .kind = Kind::kChoice, .default_value = "on", .choices = {"off", "on"},
                           .help = "mode=sketch: estimates are made smaller, to be contractive; off: feedback diverges"},
                          {.name = "feedback", .kind = Kind::kChoice, .default_value = "auto", .choices = {"auto", "off", "on"},
                           .help = "error feedback; auto: on for mode=sketch, where something is lost, else what a further stage wants"}},
           .reference = "arXiv 2110.02140; ICASSP 2022"},
          [](const SpecValues& values, Made next) -> Made {
            S2Options options{.mode = s2_mode_of(values.choice("mode")),
                              .block = static_cast<std::uint64_t>(values.integer("block"))};
            options.sketching = {values.real("ratio"), std::stoi(values.choice("tables")), values.choice("shrink") == "on"};
            return std::make_unique<S2>(options, std::move(next));
          }};
}

Row coordinates() {
  return {{.name = "coordinates",
           .description = "all-gather of coordinates: every row that is not zero, with its number in 64 bits",
           .wire_id = Coordinates::kWireId,
           .aggregation = Aggregation::kGather,
           .lossless = true,
           .unbiased = true,
           .contractive = true,
           .unit = Unit::kRow,
           .parameters = {block("0", 0)},
           .reference = "what PyTorch's backends do to sum sparse tensors"},
          [](const SpecValues& values, Made) -> Made {
            return std::make_unique<Coordinates>(static_cast<std::uint64_t>(values.integer("block")));
          }};
}

Row sparcml() {
  return {{.name = "sparcml",
           .description = "sparse all-reduce of single entries, split and gathered, that turns dense where that is shorter",
           .wire_id = SparCml::kWireId,
           .aggregation = Aggregation::kGather,
           .lossless = true,
           .unbiased = true,
           .contractive = true,
           .unit = Unit::kRow,
           .parameters = {},
           .reference = "SparCML: Renggli et al., SC 2019, SSAR_Split_allgather and DSAR"},
          [](const SpecValues&, Made) -> Made { return std::make_unique<SparCml>(); }};
}

Row omnireduce() {
  return {{.name = "omnireduce",
           .description = "blocks that are not zero, sent to their owners, who send the sums to all",
           .wire_id = 34,
           .aggregation = Aggregation::kLinear,
           .lossless = true,
           .unbiased = true,
           .contractive = true,
           .unit = Unit::kRow,
           .parameters = {block("256", 1)},
           .reference = "OmniReduce: Fei et al., SIGCOMM 2021"},
          [](const SpecValues& values, Made) -> Made {
            return std::make_unique<S2>(S2Options{.mode = S2Mode::kSplit, .block = static_cast<std::uint64_t>(values.integer("block"))},
                                        nullptr);
          }};
}

std::optional<Axis> axis_of(const std::string& text) {
  if (text == "filter") return Axis::kFilter;
  if (text == "flat") return Axis::kFlat;
  if (text == "out") return Axis::kOut;
  if (text == "in") return Axis::kIn;
  if (text == "kernel") return Axis::kKernel;
  if (text == "square") return Axis::kSquare;
  return std::nullopt;
}

SpecParameter steps(const char* name, const char* default_value, double minimum, const char* help) {
  return {.name = name, .kind = Kind::kInteger, .default_value = default_value, .minimum = minimum, .maximum = 1e9, .choices = {},
          .help = help};
}

double gradiveq_rate(const SpecValues& values, bool has_stage) {
  const double rate = values.real("rate");
  if (rate > 0 && rate < 0.125)
    throw ArgumentError("compressor 'gradiveq': rate=" + values.choice("rate") + " is not allowed; it takes 0 or a number from 0.125 to 16");
  if (rate > 0 && has_stage) throw ArgumentError("compressor 'gradiveq': with rate= it rounds coefficients itself, and takes no further stage");
  return rate;
}

Made gradiveq_follow(const SpecValues& values, Made next) {
  if (values.real("rate") > 0 || values.real("energy") > 0)
    throw ArgumentError("compressor 'gradiveq': with refresh=every there are as many components as dims or ratio say; it takes no rate= and no "
                        "energy=. A stage can round its coefficients: gradiveq:refresh=every/bf16");
  FollowOptions options;
  options.axis = axis_of(values.choice("axis")).value_or(options.axis);
  if (values.integer("slice") > 0) options.slice = static_cast<std::size_t>(values.integer("slice"));
  options.probes = static_cast<std::size_t>(values.integer("probes"));
  options.dims = static_cast<std::size_t>(values.integer("dims"));
  options.ratio = values.real("ratio");
  options.smallest = static_cast<std::uint64_t>(values.integer("smallest"));
  return std::make_unique<GradiveqFollow>(options, std::move(next));
}

Row gradiveq() {
  SpecParameter feedback_or_flush = feedback("off");
  feedback_or_flush.choices = {"off", "on", "flush"};
  feedback_or_flush.help = "off: what the components do not hold is lost; on: it is kept and sent in the next learning step, or, with "
                           "refresh=every, as probes find it; "
                           "flush: in parts in all of them, for cycles that learn about as long as they use";
  return {{.name = "gradiveq",
           .description = "slices projected on their principal components, which all workers share",
           .wire_id = Gradiveq::kWireId,
           .aggregation = Aggregation::kLinear,
           .unit = Unit::kSlice,
           .takes_stage = true,
           .parameters = {{.name = "ratio", .kind = Kind::kReal, .default_value = "16", .minimum = 1, .maximum = 10000, .choices = {},
                           .help = "entries of a slice to each of its components"},
                          {.name = "dims", .kind = Kind::kInteger, .default_value = "0", .minimum = 0, .maximum = 4096, .choices = {},
                           .help = "components of a slice; 0: as ratio or energy say"},
                          {.name = "energy", .kind = Kind::kReal, .default_value = "0", .minimum = 0, .maximum = 1, .choices = {},
                           .help = "as many components as hold this share of the variance; 0: as ratio says"},
                          real("rate", "0", 0, 16,
                               "bits an entry in compressed steps, guard bits and norms included: coefficients are rounded, strong "
                               "components to more bits; 0: they are floats, as many as dims, energy or ratio say"),
                          {.name = "slice", .kind = Kind::kInteger, .default_value = "0", .minimum = 0, .maximum = 4096, .choices = {},
                           .help = "most entries of a slice; 0: 576, or 4096 with refresh=every, which needs no covariance"},
                          {.name = "axis", .kind = Kind::kChoice, .default_value = "usual",
                           .choices = {"usual", "auto", "filter", "flat", "out", "in", "kernel", "square"},
                           .help = "along what a slice lies: whole filters, memory, output or input channels, kernels, or input channels and "
                                   "part of the kernel, so that slices are as many as their entries; auto: filter, in or kernel, for each "
                                   "parameter what keeps most at equal cost; usual: filter, or square with refresh=every"},
                          choice("refresh", {"cycle", "every"},
                                 "every: components follow the gradient in every step, with no learning phase"),
                          {.name = "probes", .kind = Kind::kInteger, .default_value = "0", .minimum = 0, .maximum = 4096, .choices = {},
                           .help = "with refresh=every, directions of a step's own beside the components; 0: as many as dims, or else as "
                                   "ratio allows"},
                          steps("learn", "100", 1, "steps of a cycle that are uncompressed, to learn from"),
                          steps("lag", "2", 0, "uncompressed steps more, in which components are found in the background"),
                          steps("use", "400", 1, "steps of a cycle that are compressed"),
                          {.name = "smallest", .kind = Kind::kInteger, .default_value = "4096", .minimum = 0, .maximum = 1e9,
                           .choices = {}, .help = "parameters of fewer elements travel uncompressed"},
                          feedback_or_flush},
           .reference = "Yu et al., NeurIPS 2018, arXiv 1811.03617"},
          [](const SpecValues& values, Made next) -> Made {
            if (values.choice("refresh") == "every") return gradiveq_follow(values, std::move(next));
            GradiveqOptions options;
            options.schedule = {static_cast<std::uint64_t>(values.integer("learn")), static_cast<std::uint64_t>(values.integer("lag")),
                                static_cast<std::uint64_t>(values.integer("use"))};
            options.axis = values.choice("axis") == "usual" ? Axis::kFilter : axis_of(values.choice("axis"));
            if (values.integer("slice") > 0) options.slice = static_cast<std::size_t>(values.integer("slice"));
            options.size = {.rate = gradiveq_rate(values, next != nullptr), .dims = static_cast<std::size_t>(values.integer("dims")),
                            .energy = values.real("energy"), .ratio = values.real("ratio"), .uses = values.real("use")};
            options.smallest = static_cast<std::uint64_t>(values.integer("smallest"));
            return std::make_unique<Gradiveq>(options, values.choice("feedback") == "flush", std::move(next));
          }};
}

Qsgd::Travel travel_of(const std::string& text) {
  if (text == "sum") return Qsgd::Travel::kSum;
  if (text == "auto") return Qsgd::Travel::kAuto;
  return text == "scatter" ? Qsgd::Travel::kScatter : Qsgd::Travel::kGather;
}

Row qsgd() {
  return {{.name = "qsgd",
           .description = "values rounded at random to 2^bits - 1 evenly spaced levels, unbiased",
           .wire_id = Qsgd::kWireId,
           .wire_version = Qsgd::kWireVersion,
           .aggregation = Aggregation::kGather,
           .unbiased = true,
           .parameters = {{.name = "bits", .kind = Kind::kInteger, .default_value = "4", .minimum = 2, .maximum = 8,
                           .choices = {}, .help = "bits an entry; 2^(bits-1) - 1 levels of each sign"},
                          {.name = "bucket", .kind = Kind::kInteger, .default_value = "512", .minimum = 64,
                           .maximum = kChunkElements, .choices = {}, .help = "entries that share a norm, a multiple of 64"},
                          {.name = "norm", .kind = Kind::kChoice, .default_value = "max", .choices = {"max", "l2"},
                           .help = "what the levels are shares of: the bucket's largest magnitude, or its Euclidean norm"},
                          feedback("off"),
                          {.name = "reduce", .kind = Kind::kChoice, .default_value = "auto",
                           .choices = {"auto", "gather", "scatter", "sum"},
                           .help = "gather, scatter: each worker's code is decoded by itself; sum: norms are shared, so that levels "
                                   "add up in all-reduce; auto: gather or sum, whichever sends less"}},
           .reference = "Alistarh et al., NeurIPS 2017, arXiv 1610.02132"},
          [](const SpecValues& values, Made) -> Made {
            return std::make_unique<Qsgd>(Qsgd::Options{.bits = static_cast<int>(values.integer("bits")),
                                                        .bucket = static_cast<std::size_t>(values.integer("bucket")),
                                                        .norm = values.choice("norm") == "l2" ? Qsgd::Norm::kL2 : Qsgd::Norm::kMax,
                                                        .travel = travel_of(values.choice("reduce")),
                                                        .feedback = values.choice("feedback") == "on"});
          }};
}

// "none" first, then by name.
const std::vector<Row>& rows() {
  static const std::vector<Row> rows = {
      none(),
      half("bf16", "values rounded to bfloat16 (8 exponent, 7 fraction bits), summed", 2, ElementType::kBfloat16),
      casq(),
      coordinates(),
      half("fp16", "values rounded to binary16 (5 exponent, 10 fraction bits), divided first, summed", 3,
           ElementType::kFloat16),
      gradiveq(),
      omnireduce(),
      qsgd(),
      s2(),
      sparcml(),
  };
  return rows;
}

const Row& row_of(const std::string& name) {
  std::string known;
  for (const Row& row : rows()) {
    if (row.info.name == name) return row;
    known += (known.empty() ? "" : ", ") + row.info.name;
  }
  throw ArgumentError("there is no compressor '" + name + "'; there are " + known);
}

// What a stage sends is cut anywhere, and its length may change from step to step: there are no rows or slices in it to be found again.
void check_stage(const CompressorInfo& sender, const CompressorInfo& carrier, std::string_view spec) {
  if (!sender.takes_stage)
    throw ArgumentError("compressor '" + sender.name + "' takes no further stage, but '" + carrier.name + "' follows it in '" +
                        std::string(spec) + "'");
  if (carrier.unit == Unit::kElement) return;
  std::string allowed;
  for (const Row& row : rows())
    if (row.info.unit == Unit::kElement) allowed += (allowed.empty() ? "" : ", ") + row.info.name;
  throw ArgumentError("compressor '" + carrier.name + "' cannot carry what '" + sender.name + "' sends, as '" + std::string(spec) +
                      "' says: it works on whole " + name_of(carrier.unit) + "s of a parameter, and a stage is handed single elements; '" +
                      sender.name + "' can be followed by " + allowed);
}

}  // namespace

const char* name_of(Aggregation aggregation) { return aggregation == Aggregation::kLinear ? "linear" : "gather"; }

const char* name_of(Unit unit) {
  switch (unit) {
    case Unit::kElement:
      return "element";
    case Unit::kRow:
      return "row";
    case Unit::kSlice:
      return "slice";
    case Unit::kParameter:
      return "parameter";
  }
  return "unknown";
}

std::span<const CompressorInfo> compressors() {
  static const std::vector<CompressorInfo> infos = [] {
    std::vector<CompressorInfo> result;
    for (const Row& row : rows()) result.push_back(row.info);
    return result;
  }();
  return infos;
}

ChosenCompressor make_compressor(std::string_view text) {
  const Spec spec = Spec::parse(text);
  ChosenCompressor chosen;
  Spec canonical;
  // From the last stage to the first, since each is made with what follows it.
  for (auto stage = spec.stages.rbegin(); stage != spec.stages.rend(); ++stage) {
    const Row& row = row_of(stage->name);
    if (chosen.compressor) check_stage(row.info, *chosen.info, text);
    const SpecValues values(*stage, row.info);
    canonical.stages.insert(canonical.stages.begin(), values.canonical());
    chosen.info = &row.info;
    chosen.compressor = row.make(values, std::move(chosen.compressor));
    if (values.has("feedback")) {
      const std::string& feedback = values.choice("feedback");
      chosen.feedback = chosen.feedback || feedback == "on" || feedback == "flush" || (feedback == "auto" && chosen.compressor->needs_feedback());
    }
  }
  chosen.canonical = canonical.text();
  return chosen;
}

std::string canonical_spec(const std::string& spec) { return make_compressor(spec).canonical; }

}  // namespace thinwire
