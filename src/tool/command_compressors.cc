#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "thinwire/errors.h"
#include "thinwire/registry.h"
#include "tool/commands.h"
#include "tool/table.h"

namespace thinwire::tool {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::string name;
  bool json = false;
};

std::string claims(const CompressorInfo& row) {
  std::string text;
  const auto add = [&](bool claimed, const char* claim) {
    if (claimed) text += (text.empty() ? "" : ", ") + std::string(claim);
  };
  add(row.lossless, "lossless");
  add(row.unbiased, "unbiased");
  add(row.contractive, "contractive");
  return text.empty() ? "-" : text;
}

// What is lossless is all of it.
std::string short_claims(const CompressorInfo& row) { return row.lossless ? "lossless" : claims(row); }

ordered_json parameter_json(const SpecParameter& parameter) {
  ordered_json json = {{"name", parameter.name}, {"help", parameter.help}, {"allowed", parameter.allowed()}};
  if (parameter.kind == SpecParameter::Kind::kChoice) {
    json["kind"] = "choice";
    json["default"] = parameter.default_value;
    json["choices"] = parameter.choices;
    return json;
  }
  const bool whole = parameter.kind == SpecParameter::Kind::kInteger;
  json["kind"] = whole ? "integer" : "real";
  const auto number = ordered_json::parse(parameter.default_value, nullptr, /*allow_exceptions=*/false);
  json["default"] = number.is_number() ? number : ordered_json(parameter.default_value);
  const auto limit = [whole](double value) {
    return whole ? ordered_json(static_cast<std::int64_t>(value)) : ordered_json(value);
  };
  json["minimum"] = limit(parameter.minimum);
  json["maximum"] = limit(parameter.maximum);
  return json;
}

ordered_json row_json(const CompressorInfo& row) {
  ordered_json parameters = ordered_json::array();
  for (const SpecParameter& parameter : row.parameters) parameters.push_back(parameter_json(parameter));
  return {{"name", row.name},
          {"family", name_of(row.family)},
          {"description", row.description},
          {"bits", row.bits},
          {"wire_id", row.wire_id},
          {"wire_version", row.wire_version},
          {"aggregation", name_of(row.aggregation)},
          {"lossless", row.lossless},
          {"unbiased", row.unbiased},
          {"contractive", row.contractive},
          {"unit", name_of(row.unit)},
          {"takes_stage", row.takes_stage},
          {"sizes", row.sizes},
          {"learns", row.learns},
          {"parameters", parameters},
          {"reference", row.reference}};
}

std::string title_of(const CompressorInfo& row) { return row.description.substr(0, row.description.find(':')); }

// A line each, by family.
void print_table(std::span<const CompressorInfo> rows) {
  Table table({{"compressor", 14}, {"bits", 12}, {"combined by", 11}, {"claims", 21}, {"what it is", 34}});
  for (const Family family : {Family::kFloats, Family::kLevels, Family::kSigns, Family::kRotations, Family::kProjections,
                              Family::kSparsifiers, Family::kRows}) {
    table.add({name_of(family), "", "", "", ""});
    for (const CompressorInfo& row : rows)
      if (row.family == family) table.add({"  " + row.name, row.bits, name_of(row.aggregation), short_claims(row), title_of(row)});
  }
  table.print(std::cout);
  std::cout << "\nbits: of an entry. linear: payloads are summed; gather: they are decoded one by one, or may be.\n"
               "A spec is name[:parameter=value,...]; `thinwire compressors NAME` tells its parameters and paper.\n";
}

void print_in_full(const CompressorInfo& row) {
  for (const std::string& line : wrap(row.name + ": " + row.description, kLineWidth)) std::cout << line << '\n';
  std::cout << "\n  combined by  " << name_of(row.aggregation) << "\n  claims       " << claims(row)
            << "\n  unit         " << name_of(row.unit) << "\n  a stage      "
            << (row.takes_stage ? "may follow, and carries what it sends: " + row.name + "/SPEC" : "may not follow")
            << "\n  wire format  id " << int{row.wire_id} << ", version "
            << int{row.wire_version} << '\n';
  if (!row.reference.empty()) {
    const char* heading = "  reference    ";
    for (const std::string& line : wrap(row.reference, kLineWidth - std::string_view(heading).size())) {
      std::cout << heading << line << '\n';
      heading = "               ";
    }
  }
  std::cout << '\n';
  if (row.parameters.empty()) {
    std::cout << "It takes no parameters.\n";
    return;
  }
  Table table({{"parameter", 16}, {"default", 12}, {"allowed", 24}, {"meaning", 42}});
  for (const SpecParameter& parameter : row.parameters)
    table.add({parameter.name, parameter.default_value, parameter.allowed(), parameter.help});
  table.print(std::cout);
}

std::span<const CompressorInfo> selected(const std::string& name) {
  const auto all = compressors();
  if (name.empty()) return all;
  std::string names;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].name == name) return all.subspan(i, 1);
    names += (i == 0 ? "" : ", ") + all[i].name;
  }
  throw ArgumentError("there is no compressor '" + name + "'; there are " + names);
}

void run_compressors(const Options& options) {
  const auto rows = selected(options.name);
  if (options.json) {
    ordered_json list = ordered_json::array();
    for (const CompressorInfo& row : rows) list.push_back(row_json(row));
    std::cout << list.dump(2) << '\n';
  } else if (!options.name.empty()) {
    print_in_full(rows.front());
  } else {
    print_table(rows);
  }
}

}  // namespace

Command add_compressors(CLI::App& tool) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = tool.add_subcommand("compressors", "Lists the compressors there are");
  app->add_option("name", options->name, "Show this one in full")->type_name("NAME");
  app->add_flag("--json", options->json, "Print a JSON list of rows");
  app->footer("Examples:\n"
              "  thinwire compressors\n"
              "  thinwire compressors casq\n"
              "  thinwire compressors --json | jq '.[].name'");
  return {app, [options] { run_compressors(*options); }};
}

}  // namespace thinwire::tool
