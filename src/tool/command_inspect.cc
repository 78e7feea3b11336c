#include <cmath>
#include <iostream>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "thinwire/errors.h"
#include "tool/chosen_gradient.h"
#include "tool/commands.h"
#include "tool/inspection.h"
#include "tool/table.h"
#include "tool/text_file.h"

namespace thinwire::tool {
namespace {

using nlohmann::ordered_json;

struct Options {
  GradientChoice gradient;
  std::optional<std::string> html;
  bool json = false;
};

ordered_json number(const std::optional<double>& value) { return value ? ordered_json(*value) : ordered_json(nullptr); }

ordered_json errors(const std::vector<std::optional<double>>& values) {
  ordered_json list = ordered_json::array();
  for (const auto& value : values) list.push_back(number(value));
  return list;
}

void add_statistics(ordered_json& json, const GradientStatistics& statistics) {
  json["elements"] = statistics.elements;
  json["mean_magnitude"] = statistics.mean_magnitude;
  json["rms"] = statistics.rms;
  json["largest"] = statistics.largest;
  json["kurtosis"] = statistics.kurtosis;
  json["top_percent"] = statistics.top_percent;
  json["zeros"] = statistics.zeros;
  json["zero_rows"] = statistics.zero_rows;
  json["histogram"] = {{"lowest_octave", GradientStatistics::kLowestOctave},
                       {"bins_per_octave", 2},
                       {"negative", statistics.negative},
                       {"positive", statistics.positive}};
  json["spectrum"] = statistics.spectrum;
}

void print_json(const Inspection& inspection) {
  ordered_json json;
  add_statistics(json, inspection.all);
  json["energy"] = inspection.energy;
  json["casq_bits"] = inspection.casq_bits;
  json["casq_error"] = errors(inspection.casq_error);
  json["casq_rates"] = ordered_json::array();
  for (const InspectedRate& rate : inspection.rates)
    json["casq_rates"].push_back({{"rate", rate.rate}, {"bits", rate.bits}, {"error", rate.error ? ordered_json(*rate.error) : ordered_json()}});
  json["parameters"] = ordered_json::array();
  for (const InspectedParameter& parameter : inspection.parameters) {
    ordered_json& row = json["parameters"].emplace_back();
    row = {{"name", parameter.name}, {"shape", parameter.shape}};
    add_statistics(row, parameter.statistics);
    row["energy"] = parameter.energy;
    row["casq_error"] = errors(parameter.casq_error);
    row["casq_centres"] = parameter.centres;
  }
  std::cout << json.dump(2) << '\n';
}

std::string text(const std::optional<double>& value) { return value ? short_number(*value) : "-"; }
std::string percent(double share) { return short_number(100 * share); }

void add_row(Table& table, const std::string& name, const GradientStatistics& s, double share,
             const std::vector<std::optional<double>>& casq_error) {
  const std::size_t rank = rank_for(s.spectrum, 0.9);
  table.add({name, with_commas(s.elements), percent(share), short_number(s.mean_magnitude),
             text(s.mean_magnitude > 0 ? std::optional(s.largest / s.mean_magnitude) : std::nullopt), short_number(s.kurtosis),
             percent(s.zeros), percent(s.zero_rows), rank > 0 ? std::to_string(rank) : "-", text(casq_error[1])});
}

void print_for_people(const Inspection& inspection) {
  Table table({{"parameter", 18},
               {"elements", 12, true},
               {"energy%", 8, true},
               {"mean|x|", 8, true},
               {"max/mean", 8, true},
               {"kurtosis", 8, true},
               {"zeros%", 6, true},
               {"rows%", 6, true},
               {"rank", 4, true},
               {"casq:2", 7, true}});
  for (const InspectedParameter& parameter : inspection.parameters)
    add_row(table, parameter.name, parameter.statistics, inspection.energy > 0 ? parameter.energy / inspection.energy : 0,
            parameter.casq_error);
  add_row(table, "all", inspection.all, 1, inspection.casq_error);
  table.print(std::cout);
  std::cout << "\nenergy%: share of the sum of squares; rows%: rows that are all zeros; rank: singular vectors\n"
               "that hold 90 % of the energy; casq:2: share of it that casq:bits=2 loses. Of the whole:\n\n";
  Table errors({{"compressor", 20}, {"bits an element", 15, true}, {"error", 8, true}});
  for (std::size_t i = 0; i < inspection.casq_bits.size(); ++i)
    errors.add({"casq:bits=" + std::to_string(i + 1), short_number(inspection.casq_bits[i]), text(inspection.casq_error[i])});
  for (const InspectedRate& rate : inspection.rates)
    errors.add({"casq:rate=" + short_number(rate.rate), short_number(rate.bits), text(rate.error)});
  errors.print(std::cout);
}

void run_inspect(const Options& options) {
  const ChosenGradient gradient = read_chosen(options.gradient);
  const Inspection inspection = inspect(gradient.layout, gradient.last());
  if (options.html) write_text(*options.html, inspection_page(inspection, options.gradient.input));
  options.json ? print_json(inspection) : print_for_people(inspection);
}

}  // namespace

Command add_inspect(CLI::App& tool) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = tool.add_subcommand("inspect", "Says what a gradient looks like, and what CASQ's clusters make of it");
  add_choice(*app, options->gradient);
  app->add_option("--html", options->html, "Write a page with pictures")->type_name("FILE");
  app->add_flag("--json", options->json, "Print one JSON object");
  app->footer(R"(For each parameter of the layout, and for all together:
  mean_magnitude, rms, largest   its scale
  kurtosis       E x^4 / (E x^2)^2: 3 for a Gaussian, 6 for Laplace, more for heavier tails
  top_percent    share of the energy in the largest hundredth of the magnitudes
  zeros, zero_rows   shares of entries, and of rows of the first dimension
  histogram      counts by magnitude, relative to the mean; zeros are left out
  spectrum       shares of the energy in singular vectors, of 96 rows where there are more
  casq_error     share of the energy that casq:bits=1 to 4 loses, without feedback
  casq_centres   what the first chunk's clusters decode to
  casq_rates     bits that casq:rate=0.05 to 3 takes, and the share that it loses, of all together

Examples:
  thinwire inspect --input g.npy
  thinwire inspect --input g.npy --layout layers.json --html gradient.html
  thinwire inspect --input steps.npy --step 3 --worker 1 --json)");
  return {app, [options] { run_inspect(*options); }};
}

}  // namespace thinwire::tool
