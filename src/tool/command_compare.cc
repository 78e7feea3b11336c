#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "thinwire/errors.h"
#include "tool/chosen_gradient.h"
#include "tool/commands.h"
#include "tool/comparison.h"
#include "tool/table.h"
#include "tool/text_file.h"

namespace thinwire::tool {
namespace {

using nlohmann::ordered_json;

struct Options {
  GradientChoice gradient;
  std::vector<double> bits = {0.1, 0.25, 0.5, 1, 2, 3, 4, 8};
  std::optional<std::string> html;
  bool json = false;
};

void print_json(const Comparison& comparison) {
  ordered_json json = {{"elements", comparison.elements},
                       {"bits", comparison.bits},
                       {"bounds", {{"gaussian", comparison.gaussian}, {"blocks", comparison.blocks}}},
                       {"curves", ordered_json::array()},
                       {"left_out", comparison.left_out}};
  for (const ComparedCurve& curve : comparison.curves) {
    ordered_json points = ordered_json::array();
    for (const ComparedPoint& point : curve.points) points.push_back({{"spec", point.spec}, {"bits", point.bits}, {"error", point.error}});
    json["curves"].push_back({{"compressor", curve.name}, {"family", name_of(curve.family)}, {"points", points}});
  }
  std::cout << json.dump(2) << '\n';
}

// Two digits, with which eight columns fit a line.
std::string short_error(double error) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), error < 10 ? "%.2g" : "%.0f", error);
  return text.data();
}

void print_for_people(const Comparison& comparison) {
  const std::size_t budgets = comparison.bits.size();
  std::vector<Column> columns{{"error at bits an entry", 32}};
  for (const double bits : comparison.bits) columns.push_back({short_number(bits), 9, true});
  const std::vector<double> least = comparison.least();
  Table table(columns);
  const auto add = [&](const std::string& name, const auto& cell) {
    std::vector<std::string> cells{name};
    for (std::size_t b = 0; b < budgets; ++b) cells.push_back(cell(b));
    table.add(cells);
  };
  for (const ComparedCurve& curve : comparison.curves) {
    const auto cell = [&](std::size_t b) {
      const ComparedPoint* const found = comparison.at(curve, b);
      return found ? short_error(found->error) + (found->error == least[b] ? "*" : "") : std::string();
    };
    for (std::size_t b = 0; b < budgets; ++b)
      if (comparison.at(curve, b)) {
        add(curve.name, cell);
        break;
      }
  }
  add("bound: Gaussian", [&](std::size_t b) { return short_error(comparison.gaussian[b]); });
  add("bound: blocks' scales", [&](std::size_t b) { return short_error(comparison.blocks[b]); });
  table.print(std::cout);
  std::string note = "Shares of the energy that one exchange loses, of " + with_commas(comparison.elements) +
                     " elements; * marks the least. A column shows what takes more bits than the one before it. bound: what no code of Gaussian "
                     "entries goes below, of one scale, or of known scales of blocks of " +
                     std::to_string(kBoundBlock) + ".";
  std::string names;
  for (const std::string& name : comparison.left_out) names += (names.empty() ? "" : ", ") + name;
  if (!names.empty()) note += "\nLeft out, as they learn from earlier steps, of which this input has none: " + names + ".";
  std::cout << '\n';
  for (const std::string& line : wrap(note, kLineWidth)) std::cout << line << '\n';
}

void run_compare(const Options& options) {
  const bool good = std::ranges::all_of(options.bits, [](double bits) { return bits > 0 && bits <= 32; });
  if (!good || std::ranges::adjacent_find(options.bits, std::greater_equal()) != options.bits.end() || options.bits.size() > kMostBudgets)
    throw ArgumentError("--bits must be at most " + std::to_string(kMostBudgets) + " rising numbers above 0 and up to 32, such as 0.5,1,2");
  const ChosenGradient gradient = read_chosen(options.gradient);
  const bool shows_progress = isatty(STDERR_FILENO) != 0;
  const std::string clear = "\r\x1b[K";
  const Comparison comparison = compare(gradient, options.bits, [&](const std::string& name) {
    if (shows_progress) std::cerr << clear + "comparing " + name << std::flush;
  });
  if (shows_progress) std::cerr << clear << std::flush;
  if (options.html) write_text(*options.html, comparison_page(comparison, options.gradient.input));
  options.json ? print_json(comparison) : print_for_people(comparison);
}

}  // namespace

Command add_compare(CLI::App& tool) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = tool.add_subcommand("compare", "Compares all compressors on a gradient: error over bits");
  add_choice(*app, options->gradient);
  app->add_option("--bits", options->bits, "Bits an entry, rising; default 0.1,0.25,0.5,1,2,3,4,8")->type_name("B,B,...")->delimiter(',');
  app->add_option("--html", options->html, "Write a page with a picture")->type_name("FILE");
  app->add_flag("--json", options->json, "Print one JSON object, with every point that was tried");
  app->footer(R"(Every compressor encodes the gradient once by itself, with feedback as its default says and no
residual yet; bits are those that one worker sends, all counted. Those that learn from step to step
are given the earlier steps first, without feedback, where the input has any.
  error     |g - decoded|^2 / |g|^2
  gaussian  what no code of independent Gaussians of one variance goes below, 2^(-2 bits)
  blocks    the same if every block of 128 entries has its own variance, known without being sent

Examples:
  thinwire compare --input g.npy
  thinwire compare --input g.npy --layout layers.json --bits 0.5,2 --html compared.html
  thinwire compare --input steps.npy --step 3 --worker 1 --json)");
  return {app, [options] { run_compare(*options); }};
}

}  // namespace thinwire::tool
