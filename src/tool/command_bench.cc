#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "thinwire/errors.h"
#include "thinwire/reducer.h"
#include "thinwire/registry.h"
#include "thinwire/spec.h"
#include "tool/commands.h"
#include "tool/samples.h"
#include "tool/table.h"
#include "tool/throughput.h"

namespace thinwire::tool {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::vector<std::string> specs;
  bool all = false;
  std::uint64_t elements = 25'600'000;
  int repetitions = 7;
  int threads = 1;
  bool json = false;
};

struct Row {
  std::string compressor;
  Throughput plain;                    // feedback off
  std::optional<Throughput> feedback;  // none: the compressor takes no feedback
};

// Null: it takes none.
const SpecParameter* feedback_of(const std::string& name) {
  for (const CompressorInfo& row : compressors()) {
    if (row.name != name) continue;
    const auto found = std::ranges::find(row.parameters, "feedback", &SpecParameter::name);
    return found == row.parameters.end() ? nullptr : &*found;
  }
  return nullptr;
}

// The spec with its feedback set; a kind of feedback that the user chose stays.
std::string with_feedback(const std::string& text, bool on) {
  Spec spec = Spec::parse(text);
  auto& values = spec.stages.front().values;
  const auto given = std::ranges::find(values, "feedback", &std::pair<std::string, std::string>::first);
  if (given == values.end()) values.emplace_back("feedback", on ? "on" : "off");
  else if (!on || given->second == "off") given->second = on ? "on" : "off";
  return spec.text();
}

Row measure_row(const std::string& spec, std::span<const float> gradient, const Options& options) {
  const auto measured = [&](const std::string& text) { return measure(text, gradient, options.repetitions, options.threads); };
  const SpecParameter* const kinds = feedback_of(Spec::parse(spec).stages.front().name);
  if (!kinds) return {spec, measured(spec), {}};
  if (std::ranges::count(kinds->choices, "off") == 0) {  // there is no plain one to compare with
    const Throughput only = measured(spec);
    return {spec, only, only};
  }
  return {spec, measured(with_feedback(spec, false)), measured(with_feedback(spec, true))};
}

void print_json(const std::vector<Row>& rows, double read_gbs, const Options& options) {
  ordered_json list = ordered_json::array();
  for (const Row& row : rows)
    list.push_back({{"compressor", row.compressor},
                    {"encode_gbs", row.plain.encode_gbs()},
                    {"decode_gbs", row.plain.decode_gbs()},
                    {"encode_feedback_gbs", row.feedback ? ordered_json(feedback_gbs(row.plain, *row.feedback)) : nullptr}});
  ordered_json json = {{"read_gbs", read_gbs}, {"elements", options.elements}};
  if (options.threads > 1) json["threads"] = options.threads;
  json["rows"] = list;
  std::cout << json.dump(2) << '\n';
}

void print_table(const std::vector<Row>& rows, double read_gbs, const Options& options) {
  // What is this fast does not look at the gradient at all.
  const auto is_free = [&](double gbs) { return gbs > 100 * read_gbs; };
  const auto rate = [&](double gbs) { return is_free(gbs) ? "free" : short_number(gbs); };
  const auto ratio = [&](double gbs) { return is_free(gbs) ? "-" : gbs < 1e-3 * read_gbs ? "<0.001" : short_number(gbs / read_gbs); };
  const std::string cores = options.threads == 1 ? "one core" : std::to_string(options.threads) + " threads";
  std::cout << with_commas(options.elements) << " float32, " << cores << ": GB of gradient a second, and divided by the "
            << short_number(read_gbs) << " GB/s\nthat one core reads from memory\n\n";
  Table table({{"compressor", 36},
               {"encode", 8, true},
               {"/read", 7, true},
               {"with feedback", 13, true},
               {"/read", 7, true},
               {"decode", 8, true},
               {"/read", 7, true}});
  for (const Row& row : rows) {
    const double encode = row.plain.encode_gbs(), decode = row.plain.decode_gbs();
    const double feedback = row.feedback ? feedback_gbs(row.plain, *row.feedback) : 0;
    table.add({row.compressor, rate(encode), ratio(encode), row.feedback ? rate(feedback) : "-",
               row.feedback ? ratio(feedback) : "-", rate(decode), ratio(decode)});
  }
  table.print(std::cout);
}

void run_bench(const Options& options) {
  std::vector<std::string> specs = options.specs;
  if (specs.empty())
    for (const CompressorInfo& row : compressors()) specs.push_back(row.name);
  for (const std::string& spec : specs) canonical_spec(spec);

  const std::vector<float> gradient = gradient_like(options.elements);
  std::vector<double> reading;
  const auto read_memory = [&] {
    for (int i = 0; i < options.repetitions; ++i) reading.push_back(seconds_to_read(gradient));
  };
  std::vector<Row> rows;
  read_memory();
  for (const std::string& spec : specs) {
    rows.push_back(measure_row(spec, gradient, options));
    read_memory();  // between the others, as other programs and clock rates come and go
  }
  const double read_gbs = 4e-9 * static_cast<double>(options.elements) / median(reading);
  if (options.json) print_json(rows, read_gbs, options);
  else print_table(rows, read_gbs, options);
}

}  // namespace

Command add_bench(CLI::App& tool) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = tool.add_subcommand("bench", "Measures encoding and decoding on this machine");
  auto* specs = app->add_option("--compressor", options->specs, "What to measure; may be given several times")
                    ->type_name("SPEC");
  app->add_flag("--all", options->all, "Measure every compressor, the default")
      ->excludes(specs);
  app->add_option("--elements", options->elements, "Length of the gradient; default 25,600,000")
      ->type_name("N")
      ->check(whole_number(1, 10'000'000'000));
  app->add_option("--repetitions", options->repetitions, "Of which the median counts; default 7")
      ->type_name("R")
      ->check(whole_number(1, 10'000));
  app->add_option("--threads", options->threads, "That encode and decode; default 1")
      ->type_name("T")
      ->check(whole_number(1, kMostThreads));
  app->add_flag("--json", options->json, "Print one JSON object");
  app->footer(R"(Rates are GB (1e9 bytes) of float32 gradient a second, on one core (or --threads), in buckets
of 25 MiB as DDP hands them over, after a first pass that trains clusters and touches memory.
  encode               from the gradient to the payload, without error feedback
  encode_feedback_gbs  the same with it, and what residuals add to decoding, which writes them;
                       null for a compressor that takes none
  decode               from payloads to the mean; gathered payloads are decoded for two workers,
                       and both count; with reduce=scatter the owner's part counts as encoding
  read_gbs             what one core reads: a sum over the same gradient, in the same run
  threads              in JSON, if there are several
All are medians over the repetitions. Other programs make them smaller.

Examples:
  thinwire bench
  thinwire bench --compressor casq:bits=2 --compressor bf16
  thinwire bench --compressor casq:bits=2 --threads 4
  thinwire bench --compressor casq:bits=3 --elements 1000000 --json)");
  return {app, [options] { run_bench(*options); }};
}

}  // namespace thinwire::tool
