#include <fnmatch.h>

#include <cstdlib>

#include "bindings.h"
#include "thinwire/registry.h"

namespace thinwire::python {
namespace {

nb::object whole_or_real(double value, bool whole) {
  return whole ? nb::object(nb::int_(static_cast<std::int64_t>(value))) : nb::object(nb::float_(value));
}

// A default may be a word ("auto") although the values are numbers.
nb::object default_of(const SpecParameter& parameter) {
  char* end = nullptr;
  const double value = std::strtod(parameter.default_value.c_str(), &end);
  const bool number = parameter.kind != SpecParameter::Kind::kChoice && !parameter.default_value.empty() && *end == '\0';
  if (!number) return nb::str(parameter.default_value.c_str());
  return whole_or_real(value, parameter.kind == SpecParameter::Kind::kInteger);
}

nb::dict row_of(const SpecParameter& parameter) {
  nb::dict row;
  row["name"] = parameter.name;
  row["help"] = parameter.help;
  row["allowed"] = parameter.allowed();
  row["default"] = default_of(parameter);
  if (parameter.kind == SpecParameter::Kind::kChoice) {
    row["kind"] = "choice";
    row["choices"] = parameter.choices;
    return row;
  }
  const bool whole = parameter.kind == SpecParameter::Kind::kInteger;
  row["kind"] = whole ? "integer" : "real";
  row["minimum"] = whole_or_real(parameter.minimum, whole);
  row["maximum"] = whole_or_real(parameter.maximum, whole);
  return row;
}

nb::dict row_of(const CompressorInfo& info) {
  nb::list parameters;
  for (const SpecParameter& parameter : info.parameters) parameters.append(row_of(parameter));
  nb::dict row;
  row["name"] = info.name;
  row["family"] = name_of(info.family);
  row["description"] = info.description;
  row["bits"] = info.bits;
  row["wire_id"] = info.wire_id;
  row["wire_version"] = info.wire_version;
  row["aggregation"] = name_of(info.aggregation);
  row["lossless"] = info.lossless;
  row["unbiased"] = info.unbiased;
  row["contractive"] = info.contractive;
  row["unit"] = name_of(info.unit);
  row["takes_stage"] = info.takes_stage;
  row["sizes"] = info.sizes;
  row["learns"] = info.learns;
  row["parameters"] = parameters;
  row["reference"] = info.reference;
  return row;
}

nb::list rows() {
  nb::list all;
  for (const CompressorInfo& info : compressors()) all.append(row_of(info));
  return all;
}

}  // namespace

void bind_registry(nb::module_& module) {
  module.def("compressors", &rows, "The registry: a dict for each compressor, in alphabetical order with \"none\" first.");
  module.def("canonical_spec", &canonical_spec, nb::arg("spec"),
             "The same spec with every parameter written out. Raises ArgumentError.");
  module.def("matches", [](const std::string& pattern, const std::string& name) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; },
             nb::arg("pattern"), nb::arg("name"), "Whether a rule's pattern is one of this parameter, as the reducer decides it.");
}

}  // namespace thinwire::python
