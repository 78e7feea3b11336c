#include "compressors/registry.h"

#include <vector>

#include "compressors/shared/row.h"
#include "thinwire/errors.h"

// Every compressor there is, one a line: "none" first, then by name. NAME_row() stands beside the compressor.
#define THINWIRE_ROWS(ROW) \
  ROW(none)                \
  ROW(bf16)                \
  ROW(casq)                \
  ROW(coordinates)         \
  ROW(fp16)                \
  ROW(gradiveq)            \
  ROW(omnireduce)          \
  ROW(qsgd)                \
  ROW(s2)                  \
  ROW(sparcml)             \
  /* the end */

namespace thinwire {

#define THINWIRE_DECLARE(NAME) Row NAME##_row();
THINWIRE_ROWS(THINWIRE_DECLARE)

namespace {

const std::vector<Row>& rows() {
#define THINWIRE_MAKE(NAME) NAME##_row(),
  static const std::vector<Row> rows = {THINWIRE_ROWS(THINWIRE_MAKE)};
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
