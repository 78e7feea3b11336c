#include <algorithm>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "thinwire/errors.h"
#include "thinwire/reducer.h"
#include "thinwire/registry.h"
#include "thinwire/trial.h"
#include "tool/commands.h"
#include "tool/layout_json.h"
#include "tool/npy.h"
#include "tool/rules_json.h"
#include "tool/table.h"

namespace thinwire::tool {
namespace {

using nlohmann::ordered_json;

constexpr std::uint64_t kMostWorkers = 1024;  // each is a thread
constexpr std::size_t kStepsShown = 20;

struct Options {
  TrialOptions trial;
  std::string input;
  std::optional<std::string> layout;
  std::optional<std::string> rules;
  std::optional<std::string> output;
  bool json = false;
};

struct Gradients {
  std::uint64_t steps = 1;
  int workers = 1;
  std::uint64_t elements = 0;
  bool has_steps = false;
  std::vector<float> values;
};

Gradients read_gradients(const std::string& path) {
  NpyArray array = read_npy(path);
  const auto refuse = [&](const std::string& what) {
    throw Error(path + ": has shape " + shape_text(array.shape) + "; " + what);
  };
  const std::size_t dimensions = array.shape.size();
  if (dimensions != 2 && dimensions != 3)
    refuse("(workers, n) or (steps, workers, n) is needed; for one worker save array.reshape(1, -1)");
  if (array.values.empty()) refuse("at least one step, worker and element is needed");
  const std::uint64_t workers = array.shape[dimensions - 2];
  if (workers > kMostWorkers)
    refuse(std::to_string(workers) + " workers are more than the " + std::to_string(kMostWorkers) +
           " that are allowed; the workers come before the elements");
  return {dimensions == 3 ? array.shape[0] : 1, static_cast<int>(workers), array.shape.back(), dimensions == 3,
          std::move(array.values)};
}

ordered_json number(const std::optional<double>& value) { return value ? ordered_json(*value) : ordered_json(nullptr); }

// JSON has no NaN or infinity; the library writes null for both.
void add_figures(ordered_json& json, const TrialFigures& figures) {
  json["rounds"] = figures.rounds;
  json["setup_bytes"] = figures.setup_bytes;
  json["payload_bytes"] = figures.payload_bytes;
  json["second_bytes"] = figures.second_bytes;
  json["traffic_bytes"] = figures.traffic_bytes;
  json["bits_per_element"] = number(figures.bits_per_element);
  json["nmse_mean"] = number(figures.nmse_mean);
  json["nmse_worker"] = number(figures.nmse_worker);
  json["seconds"] = figures.seconds;
}

void print_json(const TrialReport& report) {
  ordered_json json = {{"compressor", report.compressor},
                       {"workers", report.workers},
                       {"elements", report.elements},
                       {"steps", report.steps}};
  add_figures(json, report.total);
  if (report.steps > 1) {
    json["per_step"] = ordered_json::array();
    for (const TrialFigures& step : report.per_step) add_figures(json["per_step"].emplace_back(), step);
  }
  std::cout << json.dump(2) << '\n';
}

std::string text(const std::optional<double>& value) { return value ? short_number(*value) : "-"; }

void print_steps(const TrialReport& report) {
  Table table({{"step", 9, true},
               {"set-up", 9, true},
               {"payload", 9, true},
               {"second", 9, true},
               {"traffic", 9, true},
               {"bits/element", 12, true},
               {"nmse mean", 9, true},
               {"nmse worker", 11, true},
               {"seconds", 8, true}});
  const std::size_t steps = report.per_step.size();
  for (std::size_t s = 0; s < steps; ++s) {
    if (steps > kStepsShown && s == kStepsShown / 2) {
      table.add({"...", "", "", "", "", "", "", "", ""});
      s = steps - kStepsShown / 2;
    }
    const TrialFigures& step = report.per_step[s];
    table.add({std::to_string(s), short_bytes(step.setup_bytes), short_bytes(step.payload_bytes),
               short_bytes(step.second_bytes), short_bytes(step.traffic_bytes), text(step.bits_per_element),
               text(step.nmse_mean), text(step.nmse_worker), short_number(step.seconds)});
  }
  std::cout << '\n';
  table.print(std::cout);
}

void print_for_people(const TrialReport& report) {
  const TrialFigures& mean = report.total;
  const double plain = 4.0 * static_cast<double>(report.elements);
  const double ring = 2 * plain * (report.workers - 1) / report.workers;
  const auto times_less = [](double before, double after) {
    const bool less = after > 0 && before / after >= 1.01;
    return less ? ", " + short_number(before / after) + " times less than float32" : std::string();
  };
  for (const std::string& line : wrap(report.compressor, kLineWidth)) std::cout << line << '\n';
  std::cout << report.workers << " workers, " << with_commas(report.elements) << " elements, " << report.steps
            << (report.steps == 1 ? " step" : " steps") << "\n\n";
  Table table({{"per worker and step", 20}, {"", 78}});
  table.add({"rounds", short_number(mean.rounds)});
  table.add({"set-up", short_bytes(mean.setup_bytes)});
  table.add({"payload", short_bytes(mean.payload_bytes) + " = " + text(mean.bits_per_element) + " bits an element" +
                            times_less(plain, mean.payload_bytes)});
  table.add({"second encoding", short_bytes(mean.second_bytes)});
  table.add({"traffic sent", short_bytes(mean.traffic_bytes) + times_less(ring, mean.traffic_bytes)});
  table.add({"error of the mean", text(mean.nmse_mean) + " of its energy"});
  table.add({"error of a worker", text(mean.nmse_worker) + " of its energy"});
  table.add({"seconds", short_number(mean.seconds)});
  table.print(std::cout);
  if (report.steps > 1) print_steps(report);
}

void run_exchange(const Options& options) {
  TrialOptions trial = options.trial;
  if (options.rules) trial.rules = parse_rules(*options.rules);
  canonical_spec(trial.compressor);  // a wrong spec is told before files are read
  const Gradients gradients = read_gradients(options.input);
  const Layout layout =
      options.layout ? read_layout(*options.layout, gradients.elements) : Layout::flat(gradients.elements);

  const TrialReport report = run_trial(layout, gradients.values, gradients.workers, gradients.steps, trial);
  if (options.output) {
    std::vector<std::uint64_t> shape = {gradients.elements};
    if (gradients.has_steps) shape.insert(shape.begin(), gradients.steps);
    write_npy(*options.output, shape, report.mean);
  }
  options.json ? print_json(report) : print_for_people(report);
}

}  // namespace

Command add_exchange(CLI::App& tool) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = tool.add_subcommand("exchange", "Averages gradients of workers in this process, and measures it");
  app->add_option("--compressor", options->trial.compressor, "How to compress, e.g. casq:bits=2")
      ->required()
      ->type_name("SPEC");
  app->add_option("--input", options->input, "Gradients: float32 .npy, (workers, n) or (steps, workers, n)")
      ->required()
      ->type_name("FILE");
  app->add_option("--layout", options->layout, "The parameters, as JSON; without: one flat parameter")
      ->type_name("FILE");
  app->add_option("--rules", options->rules, "Other specs for some parameters: JSON, or a file of it")
      ->type_name("RULES");
  app->add_option("--seed", options->trial.seed, "Of all that is random; default 0")
      ->type_name("S")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()));
  app->add_option("--threads", options->trial.threads, "Of each worker, that encode and decode; default 1")
      ->type_name("T")
      ->check(whole_number(1, kMostThreads));
  app->add_option("--output", options->output, "Write the decoded mean: (n) or (steps, n)")->type_name("FILE");
  app->add_flag("--json", options->json, "Print one JSON object");
  app->footer(R"TEXT(A layout is a list of objects; together they must cover all n elements, other keys are ignored:
  [{"name": "conv1.weight", "shape": [64, 3, 7, 7], "offset": 0}, ...]
Rules are patterns (*, ?, [...]) and specs; the first that matches a parameter's name decides:
  --rules '{"*.bias": "none", "layer4.*": "casq:bits=1"}'     or  --rules rules.json

Bytes, rounds and seconds are means per worker and step.
  payload_bytes  the gradient's first encoding; bits_per_element is 8 payload_bytes / elements
  setup_bytes    training of clusters; second_bytes: second encodings
  traffic_bytes  what a worker sends by ring all-reduce, ring all-gather or direct all-to-all
  nmse_mean      |decoded mean - exact mean|^2 / |exact mean|^2
  nmse_worker    |input - decode of its first encoding|^2 / |input|^2, mean over the workers
In JSON, what is undefined or not finite is null.

Examples:
  python3 -c "import numpy as n; n.save('g.npy', n.random.randn(4, 100000).astype('f4'))"
  thinwire exchange --compressor casq:bits=2 --input g.npy
  thinwire exchange --compressor none --input g.npy --output mean.npy --json)TEXT");
  return {app, [options] { run_exchange(*options); }};
}

}  // namespace thinwire::tool
