#include <array>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "thinwire/errors.h"
#include "thinwire/reducer.h"
#include "tool/commands.h"
#include "tool/layout_json.h"
#include "tool/measured_plan.h"
#include "tool/planning.h"
#include "tool/table.h"
#include "tool/text_file.h"

namespace thinwire::tool {
namespace {

using nlohmann::ordered_json;

struct Options : PlanOptions {
  std::optional<std::string> html;
  std::optional<std::string> layout_file;
  std::optional<std::string> measured;
  bool json = false;
};

ordered_json row_json(const PlanRow& row, const Plan& plan) {
  const bool always = std::isinf(row.pays_below), never = row.pays_below == 0;
  ordered_json buckets = ordered_json::array();
  for (std::size_t i = 0; i < row.buckets.size(); ++i) {
    const BucketCost& bucket = row.buckets[i];
    buckets.push_back({{"elements", plan.bucket_elements[i]},
                       {"ready_seconds", bucket.ready_seconds},
                       {"encode_seconds", bucket.encode_seconds},
                       {"between_seconds", bucket.between_seconds},
                       {"decode_seconds", bucket.decode_seconds},
                       {"rounds", bucket.rounds},
                       {"hops", bucket.hops},
                       {"bytes", bucket.bytes}});
  }
  return {{"compressor", row.spec},
          {"step_seconds", row.time.seconds},
          {"waiting_seconds", row.time.waiting_seconds},
          {"codec_seconds", row.time.codec_seconds},
          {"sending_seconds", row.time.sending_seconds},
          {"wire_seconds", row.time.wire_seconds},
          {"speedup", row.speedup},
          {"limit", name_of(row.limit)},
          {"pays", row.spec == kPlainSpec || never ? "never" : always ? "always" : "below"},
          {"pays_below_bits_per_second", always || never ? ordered_json(nullptr) : ordered_json(8 * row.pays_below)},
          {"traffic_bytes", row.bytes()},
          {"bits_per_element", plan.bits(row)},
          {"rounds", row.rounds()},
          {"nmse_worker", row.error ? ordered_json(*row.error) : ordered_json(nullptr)},
          {"buckets", buckets}};
}

void print_json(const Plan& plan, const PlanOptions& options) {
  ordered_json measured = {{"elements", plan.measured_elements}, {"workers", options.tried(false, plan.measured_elements)}};
  if (options.per_host > 1) measured["hosts"] = options.tried(true, plan.measured_elements);
  ordered_json rows = ordered_json::array();
  for (const PlanRow& row : plan.rows) rows.push_back(row_json(row, plan));
  std::cout << ordered_json{{"link_bits_per_second", 8 * plan.step.link.bytes_per_second},
                            {"round_seconds", plan.step.link.round_seconds},
                            {"workers", options.workers},
                            {"per_host", options.per_host},
                            {"elements", plan.elements},
                            {"compute_seconds", plan.step.compute_seconds},
                            {"hidden", plan.step.hidden},
                            {"sending_seconds_per_byte", plan.sending_seconds},
                            {"cores", options.cores ? ordered_json(*options.cores) : ordered_json(nullptr)},
                            {"lanes", plan.step.lanes},
                            {"threads", options.threads},
                            {"measured", measured},
                            {"rows", rows}}
                   .dump(2)
            << '\n';
}

constexpr const char* kNote = R"(error: the share of the noise's energy that one encoding loses, which with feedback is sent later;
* marks those that nothing faster undercuts. `thinwire compare` tells it of your gradients, whose
low rank or few large entries noise does not have.
)";

void print_for_people(const Plan& plan, const PlanOptions& options) {
  const std::size_t buckets = plan.bucket_elements.size();
  std::cout << with_commas(plan.elements) << " float32 in " << buckets << (buckets == 1 ? " bucket, " : " buckets, ") << workers_text(options)
            << ", " << short_rate(plan.step.link.bytes_per_second) << ", " << milliseconds(plan.step.link.round_seconds)
            << " ms a round";
  if (plan.step.compute_seconds > 0) std::cout << ", " << milliseconds(plan.step.compute_seconds) << " ms of computation";
  std::cout << "\n\n";
  Table table({{"compressor", 29},
               {"bits", 8, true},
               {"wire ms", 8, true},
               {"codec ms", 8, true},
               {"step ms", 8, true},
               {"speedup", 8, true},
               {"pays below", 10, true},
               {"error", 9, true}});
  double least = std::numeric_limits<double>::infinity();
  for (const PlanRow& row : plan.rows) {
    const bool is_least = row.error && *row.error < least;
    if (is_least) least = *row.error;
    table.add({short_name(row, options), number_text(plan.bits(row)), milliseconds(row.time.wire_seconds), milliseconds(row.time.codec_seconds),
               milliseconds(row.time.seconds), number_text(row.speedup), pays_text(row),
               (row.error ? short_number(*row.error) : "-") + (is_least ? "*" : " ")});
  }
  table.print(std::cout);
  if (options.per_host > 1) std::cout << "\nAll but that ring goes on two levels (\"hosts:\"): the workers of a host send as one, docs/hosts.md.\n";
  std::cout << '\n';
  for (const std::string& line : wrap(verdict(plan), kLineWidth)) std::cout << line << '\n';
  std::cout << "\nA prediction (docs/plan.md), from codecs that were measured on this machine, on noise.\n"
            << "To send a byte takes " << short_number(1e9 * plan.sending_seconds) << " ns of the processor (--sending).\n"
            << kNote;
  std::string fewer;
  for (const bool on_two_levels : {false, true}) {
    const std::vector<int> tried = options.tried(on_two_levels, plan.measured_elements);
    if (tried.size() > 1) fewer += ", " + std::to_string(tried.front()) + " and " + std::to_string(tried.back()) + (on_two_levels ? " hosts" : " workers");
    if (options.per_host == 1) break;
  }
  if (!fewer.empty() || plan.measured_elements != plan.elements)
    std::cout << "Measured with " << with_commas(plan.measured_elements) << " elements" << fewer << ", from which the rest follows.\n";
}

void print_json(const Compared& compared) {
  ordered_json rows = ordered_json::array();
  for (const ComparedRow& row : compared.rows)
    rows.push_back({{"link", row.link},
                    {"elements", row.elements},
                    {"path", row.path},
                    {"compressor", row.spec},
                    {"measured_seconds", row.measured_seconds},
                    {"predicted_seconds", row.predicted_seconds},
                    {"sending_seconds_per_byte", row.sending_seconds}});
  std::cout << ordered_json{{"cores", compared.cores ? ordered_json(*compared.cores) : ordered_json(nullptr)},
                            {"median_off", compared.median_off()},
                            {"worst_off", compared.worst_off()},
                            {"left_out", compared.left_out},
                            {"rows", rows}}
                   .dump(2)
            << '\n';
}

std::string per_cent(double share) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%.0f %%", 100 * share);
  return text.data();
}

void print_for_people(const Compared& compared) {
  Table table({{"link", 14}, {"elements", 12, true}, {"path", 4}, {"compressor", 29}, {"ms", 12, true}, {"predicted", 10, true}, {"off", 8, true}, {"ns a byte", 9, true}});
  for (const ComparedRow& row : compared.rows)
    table.add({row.link, with_commas(row.elements), row.path, row.spec, milliseconds(row.measured_seconds), milliseconds(row.predicted_seconds),
               (row.off() >= 0 ? "+" : "") + per_cent(row.off()), number_text(1e9 * row.sending_seconds)});
  table.print(std::cout);
  std::cout << "\nOff by " << per_cent(compared.median_off()) << " (median), " << per_cent(compared.worst_off()) << " at worst, over "
            << compared.rows.size() << " rows;\n" << (compared.cores ? std::to_string(*compared.cores) + " cores for all workers" : "each worker on cores of its own")
            << "; ns a byte: of the processor, to send it.\n";
  if (std::ranges::any_of(compared.rows, [](const ComparedRow& row) { return row.link.ends_with(kNetworkAlone); }))
    std::cout << "*: as if computation took no time.\n";
  if (compared.left_out > 0) std::cout << compared.left_out << " rows are left out: PyTorch's own hooks, no link, one level where workers share it, rules.\n";
}

void run_plan(Options options) {
  const bool shows_progress = isatty(STDERR_FILENO) != 0;
  const std::string clear = "\r\x1b[K";
  const auto tell = [&](const std::string& spec) {
    if (shows_progress) std::cerr << clear + "measuring " + spec << std::flush;
  };
  if (options.measured) {
    const Compared compared = compare_with_measured(*options.measured, options, tell);
    if (shows_progress) std::cerr << clear << std::flush;
    return options.json ? print_json(compared) : print_for_people(compared);
  }
  if (options.link.bytes_per_second == 0) throw ArgumentError("--link is required, unless --measured names a file");
  if (options.layout_file) {
    options.layout = read_layout(*options.layout_file, std::nullopt);
    if (options.layout->elements() == 0) throw Error(*options.layout_file + ": has no elements to average");
  }
  const Plan plan = make_plan(options, tell);
  if (shows_progress) std::cerr << clear << std::flush;
  if (options.html) write_text(*options.html, plan_page(plan, options));
  options.json ? print_json(plan, options) : print_for_people(plan, options);
}

// Checks an option by what reads it.
template <class Parse>
CLI::Validator readable(Parse parse) {
  const auto check = [parse](const std::string& text) {
    try {
      parse(text);
      return std::string();
    } catch (const ArgumentError& error) {
      return std::string(error.what());
    }
  };
  return CLI::Validator(check, "");
}

// An option that `parse` reads into `value`.
template <class Value>
CLI::Option* add_read(CLI::App* app, const std::string& name, double (*parse)(const std::string&), Value& value, const std::string& help) {
  return app->add_option_function<std::string>(name, [parse, &value](const std::string& text) { value = parse(text); }, help)->check(readable(parse));
}

}  // namespace

Command add_plan(CLI::App& tool) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = tool.add_subcommand("plan", "Predicts which compressor pays on which network");
  add_read(app, "--link", parse_rate, options->link.bytes_per_second, "Bits a second that each worker or host sends: 100mbit, 1gbit, 2.5gbit")
      ->type_name("RATE");
  add_read(app, "--latency", parse_time, options->link.round_seconds, "What a collective takes that moves next to nothing; default 200us")
      ->type_name("TIME");
  app->add_option("--workers", options->workers, "That train together; default 4")->type_name("W")->check(whole_number(2, kMostPlanned));
  app->add_option_function<std::string>(
         "--hosts",
         [options](const std::string& text) {
           const Hosts hosts = parse_hosts(text);
           options->workers = hosts.count * hosts.workers;
           options->per_host = hosts.workers;
         },
         "Instead: hosts, and the workers of each, which share its link")
      ->type_name("HxL")
      ->check(readable(parse_hosts))
      ->excludes("--workers");
  app->add_option("--elements", options->elements, "Parameters of the model; default 25,600,000")
      ->type_name("N")
      ->check(whole_number(1, 10'000'000'000));
  app->add_option("--layout", options->layout_file, "The parameters, as JSON (see `thinwire exchange --help`)")
      ->type_name("FILE")
      ->excludes("--elements");
  app->add_option("--compute", options->compute_seconds, "Of a step without averaging; default 0, where gradients lie there")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 1e6));
  app->add_option("--bucket-mb", options->bucket_mb, "DDP's bucket_cap_mb; default 25, after a first bucket of 1")
      ->type_name("MB")
      ->check(CLI::Range(0.1, 1e5));
  app->add_option("--lanes", options->lanes, "Buckets on their way at once; default 4")->type_name("L")->check(whole_number(1, 64));
  app->add_option("--threads", options->threads, "Of each worker, that encode and decode; default 1")
      ->type_name("T")
      ->check(whole_number(1, kMostThreads));
  app->add_option("--hidden", options->hidden, "Of the cores that codecs want, the share that is idle; default 1")
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 1.0));
  add_read(app, "--sending", parse_time, options->sending_seconds, "Of the processor, to send a byte and to receive one; default: measured")
      ->type_name("TIME");
  app->add_option("--cores", options->cores, "Of a machine that all workers share; default: each has its own")
      ->type_name("C")
      ->check(whole_number(1, kMostPlanned));
  app->add_option("--compressor", options->specs, "What to compare with none; may be given several times")->type_name("SPEC");
  app->add_option("--html", options->html, "Write a page with a picture: steps on links of 10 Mb/s to 100 Gb/s")->type_name("FILE");
  app->add_option("--measured", options->measured, "What bench.network, bench.scale or ./run wrote: predict its rows")
      ->type_name("FILE")
      ->excludes("--link");
  app->add_flag("--json", options->json, "Print one JSON object, with all that the prediction was made of");
  app->footer(R"(Encoding and decoding are measured on this machine, by workers of this process that compute in
turns; bytes and rounds are those that they count. What is not tried, as with more than 8 to 64
workers, by the length of the gradient, follows from what is.
A model of the step (docs/plan.md) adds the network:
  --hosts     uncompressed gradients go around a ring of all workers, which enters and leaves each
              host once; all else goes on two levels (docs/hosts.md), where the workers of a host
              send at once
  --latency   is waited for once in each round; uncompressed and gathered buckets take one round,
              reduce=scatter and powersgd two; and once for each further step around a ring, as far
              as what follows the first 60 KiB of its message does not keep the link busy
  --compute   its last two thirds are the backward pass, in which buckets of whole parameters become
              ready from the last to the first, as in DDP, by their elements
  --hidden    1: codecs run on cores that the computation leaves idle, as beside a GPU; 0: the
              computation wants all cores, and every millisecond of codec delays it by one
  --sending   is measured through this machine's loopback; what a network card takes or saves is not
              in it
What is printed:
  bits        8 times the bytes that a link carries each way in a step, by the element: those that a
              worker sends (traffic_bytes), or all of a host
  pays below  the rate of a link below which a step is shorter than with none
  error       what one encoding loses of noise whose scale varies, as a share of its energy

Examples:
  thinwire plan --link 1gbit --workers 4 --elements 25600000 --compute 0.15
  thinwire plan --link 100mbit --layout model.json --workers 8 --compressor casq:bits=2 --json
  thinwire plan --link 10gbit --latency 50us --threads 4 --hidden 0 --compute 0.1
  thinwire plan --link 1gbit --hosts 4x8 --compute 0.15 --html plan.html
  thinwire plan --measured out/network/network.json
  thinwire plan --measured out/results.json
  thinwire plan --measured out/scale.json)");
  return {app, [options] { run_plan(*options); }};
}

}  // namespace thinwire::tool
