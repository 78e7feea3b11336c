#include "compressors/registry.h"

#include <vector>

#include "thinwire/errors.h"

// Every compressor there is, one a line: "none" first, then by name. NAME_row() stands beside the compressor.
#define THINWIRE_ROWS(ROW) \
  ROW(none)                \
  ROW(alq)                 \
  ROW(amq)                 \
  ROW(atomo)               \
  ROW(bf16)                \
  ROW(bmucsc)              \
  ROW(casq)                \
  ROW(coordinates)         \
  ROW(demo)                \
  ROW(dgc)                 \
  ROW(dorefa)              \
  ROW(eden)                \
  ROW(ef21)                \
  ROW(efsign)              \
  ROW(fetchsgd)            \
  ROW(fp16)                \
  ROW(fp8)                 \
  ROW(gradiveq)            \
  ROW(int)                 \
  ROW(mucsc)               \
  ROW(mxfp4)               \
  ROW(natural)             \
  ROW(nuqsgd)              \
  ROW(omnireduce)          \
  ROW(onebit)              \
  ROW(powersgd)            \
  ROW(qsgd)                \
  ROW(randomk)             \
  ROW(s2)                  \
  ROW(scalecom)            \
  ROW(sidco)               \
  ROW(signsgd)             \
  ROW(signum)              \
  ROW(skcompress)          \
  ROW(sketchedsgd)         \
  ROW(sparcml)             \
  ROW(sparseloco)          \
  ROW(terngrad)            \
  ROW(thc)                 \
  ROW(threshold)           \
  ROW(tinyscript)          \
  ROW(topk)                \
  ROW(wangni)              \
  ROW(zipml)               \
  /* the end */

namespace thinwire {

#define THINWIRE_DECLARE(NAME) Row NAME##_row();
THINWIRE_ROWS(THINWIRE_DECLARE)

namespace {

MadeCompressor with_defaults(const Row& row) { return row.make(SpecValues({row.info.name, {}}, row.info), nullptr); }

// Why `compressor` cannot carry what `sender` sends; empty if it can.
std::string refusal(const Row& sender, const Compressor& compressor) {
  if (compressor.unit() != Unit::kElement)
    return "it works on whole " + std::string(name_of(compressor.unit())) + "s, and a stage is handed single elements";
  if (compressor.remembers_elements()) return "it remembers something of every element, and a stage is handed others in every step";
  if (compressor.residual_decay() != 1) return "residuals are those of what comes before it, and do not decay";
  if (sender.sends == Sends::kPassingElements && compressor.needs_preparation(0))
    return "it learns from whole parameters, and what it would be handed means something else after some steps";
  return "";
}

Claims claims_of(const Row& row, const SpecValues& values) {
  const Claims usual{.aggregation = row.info.aggregation, .lossless = row.info.lossless, .unbiased = row.info.unbiased, .contractive = row.info.contractive};
  return row.claims ? row.claims(values, usual) : usual;
}

// What may follow what: rows say what they send and what they work on, and it is judged here alone.
void check_stage(const Row& sender, const Row& carrier, const Compressor& compressor, std::string_view spec) {
  const std::string &from = sender.info.name, &to = carrier.info.name;
  if (sender.sends == Sends::kNothing)
    throw ArgumentError("compressor '" + from + "' takes no further stage, but '" + to + "' follows it in '" + std::string(spec) + "'");
  const std::string reason = refusal(sender, compressor);
  if (reason.empty()) return;
  std::string allowed;
  for (const Row& row : rows()) {
    if (!refusal(sender, *with_defaults(row)).empty()) continue;
    allowed += (allowed.empty() ? "" : ", ") + row.info.name;
  }
  throw ArgumentError("compressor '" + to + "' cannot carry what '" + from + "' sends, as '" + std::string(spec) + "' says: " + reason + "; '" +
                      from + "' can be followed by " + allowed);
}

}  // namespace

std::span<const Row> rows() {
  static const std::vector<Row> all = [] {
#define THINWIRE_MAKE(NAME) NAME##_row(),
    std::vector<Row> made = {THINWIRE_ROWS(THINWIRE_MAKE)};
    for (Row& row : made) {
      row.info.unit = with_defaults(row)->unit();
      row.info.takes_stage = row.sends != Sends::kNothing;
    }
    return made;
  }();
  return all;
}

const Row& row_of(const std::string& name) {
  std::string known;
  for (const Row& row : rows()) {
    if (row.info.name == name) return row;
    known += (known.empty() ? "" : ", ") + row.info.name;
  }
  throw ArgumentError("there is no compressor '" + name + "'; there are " + known);
}

const char* name_of(Aggregation aggregation) { return aggregation == Aggregation::kLinear ? "linear" : "gather"; }

const char* name_of(Family family) {
  switch (family) {
    case Family::kFloats:
      return "floats";
    case Family::kLevels:
      return "levels";
    case Family::kSigns:
      return "signs";
    case Family::kRotations:
      return "rotations";
    case Family::kProjections:
      return "projections";
    case Family::kSparsifiers:
      return "sparsifiers";
    case Family::kRows:
      return "rows";
  }
  throw Error("a family without a name");
}

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
  const Row* carrier = nullptr;
  // From the last stage to the first, since each is made with what follows it.
  for (auto stage = spec.stages.rbegin(); stage != spec.stages.rend(); ++stage) {
    const Row& row = row_of(stage->name);
    if (chosen.compressor) check_stage(row, *carrier, *chosen.compressor, text);
    const SpecValues values(*stage, row.info);
    chosen.claims = carrier ? claims_of(row, values) & chosen.claims : claims_of(row, values);
    canonical.stages.insert(canonical.stages.begin(), values.canonical());
    chosen.info = &row.info;
    carrier = &row;
    chosen.compressor = row.make(values, std::move(chosen.compressor));
    chosen.depends_on_scale = chosen.depends_on_scale || chosen.compressor->depends_on_scale();
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
