#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "thinwire/errors.h"
#include "thinwire/reducer.h"
#include "thinwire/registry.h"
#include "tool/bucket_costs.h"
#include "tool/commands.h"
#include "tool/layout_json.h"
#include "tool/plan.h"
#include "tool/table.h"

namespace thinwire::tool {
namespace {

using nlohmann::ordered_json;

constexpr int kMostTried = 8;   // workers of this process
constexpr int kFewerTried = 4;  // where there are to be more than that
constexpr int kMostWorkers = 1024;
constexpr const char* kPlain = "none";

struct Options {
  std::string rate;
  std::string latency = "200us";
  int workers = 4;
  std::optional<std::string> layout;  // file
  std::uint64_t elements = 25'600'000;
  double compute_seconds = 0;
  std::optional<double> bucket_mb;
  int lanes = 4;
  int threads = 1;
  double hidden = 1;
  std::vector<std::string> specs = {"bf16", "casq:bits=2", "casq:bits=2,reduce=scatter", "casq:rate=1,reduce=scatter",
                                    "casq:rate=0.5,reduce=scatter", "eden:bits=2,reduce=scatter", "powersgd:rank=4", "topk:density=0.01"};
  bool json = false;

  StepCost step() const {
    return {.compute_seconds = compute_seconds, .hidden = hidden, .lanes = lanes, .link = {parse_rate(rate), parse_time(latency)}};
  }
  // By which costs are measured.
  std::vector<int> tried() const { return workers <= kMostTried ? std::vector{workers} : std::vector{kFewerTried, kMostTried}; }
};

struct Row {
  std::string spec;
  std::vector<BucketCost> buckets;
  std::optional<double> error;
  StepTime time;
  Limit limit = Limit::kLink;
  double speedup = 1;     // over kPlain
  double pays_below = 0;  // bytes a second

  double bytes() const {
    double sum = 0;
    for (const BucketCost& bucket : buckets) sum += bucket.bytes;
    return sum;
  }
  int rounds() const {
    int sum = 0;
    for (const BucketCost& bucket : buckets) sum += bucket.rounds;
    return sum;
  }
};

struct Plan {
  StepCost step;
  std::uint64_t elements = 0;
  std::vector<std::uint64_t> bucket_elements;
  std::uint64_t measured_elements = 0;
  std::vector<Row> rows;  // the fastest first

  double bits(const Row& row) const { return 8 * row.bytes() / static_cast<double>(elements); }
};

Row measure_row(const std::string& spec, const Sample& sample, const Link& link, const Options& options) {
  std::vector<BucketCosts> measured;
  for (const int tried : options.tried()) {
    const Link alike = tried == options.workers ? link : choosing_alike(link, tried, options.workers);
    measured.push_back(measure_buckets(sample.buckets, {.compressor = spec,
                                                        .workers = tried,
                                                        .threads = options.threads,
                                                        .link = alike}));
  }
  BucketCosts& costs = measured.back();
  if (measured.size() > 1)
    for (std::size_t i = 0; i < costs.buckets.size(); ++i)
      costs.buckets[i] = extrapolate({kFewerTried, measured.front().buckets[i]}, {kMostTried, costs.buckets[i]}, options.workers);
  Row row;
  row.spec = spec;
  row.buckets = std::move(costs.buckets);
  row.error = costs.nmse_worker;
  return row;
}

// The plain sum, and every one of `specs` once.
std::vector<std::string> specs_of(const Options& options) {
  std::vector<std::string> specs = {kPlain};
  for (const std::string& spec : options.specs)
    if (canonical_spec(spec) != canonical_spec(kPlain) && std::ranges::find(specs, spec) == specs.end()) specs.push_back(spec);
  return specs;
}

Plan make_plan(const Options& options) {
  Plan plan;
  plan.step = options.step();
  const BucketSizes sizes = bucket_sizes(options.bucket_mb);
  const Layout layout = options.layout ? read_layout(*options.layout, std::nullopt) : even_layout(options.elements, sizes);
  if (layout.elements() == 0) throw Error(*options.layout + ": has no elements to average");
  plan.elements = layout.elements();
  const std::vector<std::string> specs = specs_of(options);
  const Buckets buckets = ddp_buckets(layout, sizes);
  plan.bucket_elements = bucket_elements(buckets);
  const std::vector<double> ready = ready_seconds(plan.bucket_elements, plan.step.compute_seconds);
  const Sample sample = sample_of(buckets);
  plan.measured_elements = sample.elements();

  const bool shows_progress = isatty(STDERR_FILENO) != 0;
  const std::string clear = "\r\x1b[K";
  for (const std::string& spec : specs) {
    if (shows_progress) std::cerr << clear + "measuring " + spec << std::flush;
    Row row = measure_row(spec, sample, plan.step.link, options);
    row.buckets = spread(sample, row.buckets, plan.bucket_elements);
    for (std::size_t i = 0; i < ready.size(); ++i) row.buckets[i].ready_seconds = ready[i];
    row.time = predict_step(plan.step, row.buckets);
    row.limit = limit_of(plan.step, row.buckets);
    plan.rows.push_back(std::move(row));
  }
  if (shows_progress) std::cerr << clear << std::flush;
  const Row& plain = plan.rows.front();
  for (Row& row : plan.rows) {
    row.speedup = plain.time.seconds / row.time.seconds;
    row.pays_below = pays_below(plan.step, row.buckets, plain.buckets);
  }
  std::ranges::stable_sort(plan.rows, {}, [](const Row& row) { return row.time.seconds; });
  return plan;
}

ordered_json row_json(const Row& row, const Plan& plan) {
  const bool always = std::isinf(row.pays_below), never = row.pays_below == 0;
  ordered_json buckets = ordered_json::array();
  for (std::size_t i = 0; i < row.buckets.size(); ++i) {
    const BucketCost& bucket = row.buckets[i];
    buckets.push_back({{"elements", plan.bucket_elements[i]},
                       {"ready_seconds", bucket.ready_seconds},
                       {"encode_seconds", bucket.encode_seconds},
                       {"decode_seconds", bucket.decode_seconds},
                       {"rounds", bucket.rounds},
                       {"bytes", bucket.bytes}});
  }
  return {{"compressor", row.spec},
          {"step_seconds", row.time.seconds},
          {"waiting_seconds", row.time.waiting_seconds},
          {"codec_seconds", row.time.codec_seconds},
          {"wire_seconds", row.time.wire_seconds},
          {"speedup", row.speedup},
          {"limit", name_of(row.limit)},
          {"pays", row.spec == kPlain || never ? "never" : always ? "always" : "below"},
          {"pays_below_bits_per_second", always || never ? ordered_json(nullptr) : ordered_json(8 * row.pays_below)},
          {"traffic_bytes", row.bytes()},
          {"bits_per_element", plan.bits(row)},
          {"rounds", row.rounds()},
          {"nmse_worker", row.error ? ordered_json(*row.error) : ordered_json(nullptr)},
          {"buckets", buckets}};
}

void print_json(const Plan& plan, const Options& options) {
  ordered_json rows = ordered_json::array();
  for (const Row& row : plan.rows) rows.push_back(row_json(row, plan));
  std::cout << ordered_json{{"link_bits_per_second", 8 * plan.step.link.bytes_per_second},
                            {"round_seconds", plan.step.link.round_seconds},
                            {"workers", options.workers},
                            {"elements", plan.elements},
                            {"compute_seconds", plan.step.compute_seconds},
                            {"hidden", plan.step.hidden},
                            {"lanes", plan.step.lanes},
                            {"threads", options.threads},
                            {"measured", {{"elements", plan.measured_elements}, {"workers", options.tried()}}},
                            {"rows", rows}}
                   .dump(2)
            << '\n';
}

// At most eight characters: with powers of ten only where a million is reached.
std::string number_text(double number) {
  return number < 999.5 || number >= 999'999.5 ? short_number(number) : with_commas(static_cast<std::uint64_t>(std::llround(number)));
}

std::string milliseconds(double seconds) { return number_text(1e3 * seconds); }

std::string pays_text(const Row& row) {
  if (row.spec == kPlain) return "";
  if (row.pays_below == 0) return "never";
  return std::isinf(row.pays_below) ? "always" : short_rate(row.pays_below);
}

const char* limit_text(Limit limit) {
  switch (limit) {
    case Limit::kComputation:
      return "Its step is hardly longer than the computation.";
    case Limit::kCodec:
      return "What limits it is the codec: more --threads, or a processor that is faster than this one, would help most.";
    case Limit::kRounds:
      return "What limits it is the latency of rounds: a shorter one, or larger buckets, would help most.";
    default:
      return "What limits it is the link: fewer bits would help most.";
  }
}

std::string verdict(const Plan& plan) {
  const Row& best = plan.rows.front();
  if (best.spec != kPlain)
    return best.spec + " is the fastest here: " + number_text(best.speedup) + " times as fast as " + kPlain + ", and pays on " +
           (std::isinf(best.pays_below) ? "any link. " : "links below " + short_rate(best.pays_below) + ". ") + limit_text(best.limit);
  const Row& next = *std::ranges::max_element(plan.rows, {}, &Row::pays_below);
  std::string text = "Nothing here is faster than none on this link.";
  if (next.pays_below > 0) text += " The first to pay, on links below " + short_rate(next.pays_below) + ", is " + next.spec + ".";
  return text;
}

constexpr const char* kNote = R"(
A prediction, from codecs that were measured on this machine, on noise. What sending takes of the
processor is not in it: from some Gb/s on, steps take longer (docs/plan.md).
error: the share of the noise's energy that one encoding loses, which with feedback is sent later;
* marks those that nothing faster undercuts. `thinwire compare` tells it of your gradients, whose
low rank or few large entries noise does not have.
)";

void print_for_people(const Plan& plan, const Options& options) {
  const std::size_t buckets = plan.bucket_elements.size();
  std::cout << with_commas(plan.elements) << " float32 in " << buckets << (buckets == 1 ? " bucket, " : " buckets, ") << options.workers
            << " workers, " << short_rate(plan.step.link.bytes_per_second) << ", " << milliseconds(plan.step.link.round_seconds)
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
  for (const Row& row : plan.rows) {
    const bool is_least = row.error && *row.error < least;
    if (is_least) least = *row.error;
    table.add({row.spec, number_text(plan.bits(row)), milliseconds(row.time.wire_seconds), milliseconds(row.time.codec_seconds),
               milliseconds(row.time.seconds), number_text(row.speedup), pays_text(row),
               (row.error ? short_number(*row.error) : "-") + (is_least ? "*" : " ")});
  }
  table.print(std::cout);
  std::cout << '\n';
  for (const std::string& line : wrap(verdict(plan), kLineWidth)) std::cout << line << '\n';
  std::cout << kNote;
  const bool fewer_workers = options.workers > kMostTried;
  if (fewer_workers || plan.measured_elements != plan.elements)
    std::cout << "Measured with " << with_commas(plan.measured_elements) << " elements"
              << (fewer_workers ? ", " + std::to_string(kFewerTried) + " and " + std::to_string(kMostTried) + " workers" : "")
              << ", from which the rest follows.\n";
}

void run_plan(const Options& options) {
  const Plan plan = make_plan(options);
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

}  // namespace

Command add_plan(CLI::App& tool) {
  const auto options = std::make_shared<Options>();
  CLI::App* app = tool.add_subcommand("plan", "Predicts which compressor pays on which network");
  app->add_option("--link", options->rate, "Bits a second that each worker sends: 100mbit, 1gbit, 2.5gbit")
      ->required()
      ->type_name("RATE")
      ->check(readable(parse_rate));
  app->add_option("--latency", options->latency, "What a collective takes that moves next to nothing; default 200us")
      ->type_name("TIME")
      ->check(readable(parse_time));
  app->add_option("--workers", options->workers, "That train together; default 4")->type_name("W")->check(whole_number(2, kMostWorkers));
  app->add_option("--elements", options->elements, "Parameters of the model; default 25,600,000")
      ->type_name("N")
      ->check(whole_number(1, 10'000'000'000));
  app->add_option("--layout", options->layout, "The parameters, as JSON (see `thinwire exchange --help`)")
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
  app->add_option("--hidden", options->hidden, "Share of codec work that the computation does not feel; default 1")
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 1.0));
  app->add_option("--compressor", options->specs, "What to compare with none; may be given several times")->type_name("SPEC");
  app->add_flag("--json", options->json, "Print one JSON object, with all that the prediction was made of");
  app->footer(R"(Encoding and decoding are measured on this machine, by workers of this process that compute in
turns; bytes and rounds are those that they count. Above 8 workers both follow from 4 and 8.
A model of the step (docs/plan.md) adds the network:
  --latency   is waited for once in each round; uncompressed and gathered buckets take one round,
              reduce=scatter and powersgd two
  --compute   its last two thirds are the backward pass, in which buckets of whole parameters become
              ready from the last to the first, as in DDP, by their elements
  --hidden    1: codecs run on cores that the computation leaves idle, as beside a GPU; 0: the
              computation wants all cores, and every millisecond of codec delays it by one
What is printed:
  bits        8 times the bytes that a worker sends in a step (traffic_bytes), by the element
  pays below  the rate of a link below which a step is shorter than with none
  error       what one encoding loses of noise whose scale varies, as a share of its energy

Examples:
  thinwire plan --link 1gbit --workers 4 --elements 25600000 --compute 0.15
  thinwire plan --link 100mbit --layout model.json --workers 8 --compressor casq:bits=2 --json
  thinwire plan --link 10gbit --latency 50us --threads 4 --hidden 0 --compute 0.1)");
  return {app, [options] { run_plan(*options); }};
}

}  // namespace thinwire::tool
