#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "thinwire/errors.h"
#include "thinwire/hosts.h"
#include "thinwire/registry.h"
#include "tool/allreduce.h"
#include "tool/commands.h"
#include "tool/layout_json.h"
#include "tool/samples.h"
#include "tool/table.h"
#include "tool/text_file.h"
#ifdef THINWIRE_MPI
#include "thinwire/mpi.h"
#endif

namespace thinwire::tool {
namespace {

using nlohmann::ordered_json;
using Lanes = std::vector<std::unique_ptr<Communicator>>;

constexpr std::uint64_t kMostWorkers = 64;  // that are threads

struct Options {
  AllreduceOptions measured;
  std::optional<std::string> layout;  // file
  int threads = 0;  // 0: the workers are MPI processes
  std::string hosts = "flat";
  std::string progress = "auto";
  double timeout = 300;
  bool json = false;

  int groups() const { return measured.lanes.value_or(kMostChosenLanes); }
  std::chrono::milliseconds patience() const { return std::chrono::milliseconds(static_cast<std::int64_t>(1000 * timeout)); }
};

struct Report {
  int workers = 1;
  AllreduceFigures figures;
  double seconds() const { return median(figures.seconds); }
  double plain_seconds() const { return median(figures.plain_seconds); }
  // What repetitions take that differ from one another: over a whole cycle of gradiveq, its learning steps and bases included.
  double mean_seconds() const {
    return std::accumulate(figures.seconds.begin(), figures.seconds.end(), 0.0) / static_cast<double>(figures.seconds.size());
  }
  // Where sending less takes as long as encoding and decoding; none if nothing is saved, or at no cost.
  std::optional<double> break_even_gbps() const {
    const double saved = figures.plain_traffic_bytes - figures.traffic_bytes;
    if (!(saved > 0) || !(figures.codec_seconds > 0)) return std::nullopt;
    return 8e-9 * saved / figures.codec_seconds;
  }
};

std::optional<double> if_known(const Link& link, double value) { return link.is_known() ? std::optional(value) : std::nullopt; }

ordered_json number(const std::optional<double>& value) { return value ? ordered_json(*value) : ordered_json(nullptr); }

ordered_json trial_json(const AllreduceFigures& figures) {
  if (!figures.cost) return nullptr;
  ordered_json tried = ordered_json::array();
  if (figures.tried.size() > 1)
    for (const TriedDivision& each : figures.tried)
      tried.push_back({{"bucket_elements", each.bucket_elements}, {"lanes", each.lanes}, {"seconds", each.seconds}});
  return {{"codec_seconds", figures.cost->codec_seconds},
          {"wire_seconds", figures.cost->wire_seconds},
          {"bucket_codec_seconds", figures.cost->bucket_codec_seconds},
          {"bucket_wait_seconds", figures.cost->bucket_wait_seconds},
          {"tried", std::move(tried)}};
}

void print_json(const Report& report, const Options& options) {
  const AllreduceFigures& figures = report.figures;
  std::cout << ordered_json{{"workers", report.workers},
                            {"elements", options.measured.elements},
                            {"compressor", canonical_spec(options.measured.compressor)},
                            {"seconds", report.seconds()},
                            {"mean_seconds", report.mean_seconds()},
                            {"plain_seconds", report.plain_seconds()},
                            {"speedup", report.plain_seconds() / report.seconds()},
                            {"hosts", options.measured.hosts},
                            {"traffic_bytes", figures.traffic_bytes},
                            {"within_host_bytes", figures.within_host_bytes},
                            {"plain_traffic_bytes", figures.plain_traffic_bytes},
                            {"wire_bytes", number(figures.wire_bytes)},
                            {"plain_wire_bytes", number(figures.plain_wire_bytes)},
                            {"link_gbps", number(if_known(figures.link, 8e-9 * figures.link.bytes_per_second))},
                            {"round_seconds", number(if_known(figures.link, figures.link.round_seconds))},
                            {"break_even_gbps", number(report.break_even_gbps())},
                            {"codec_seconds", figures.codec_seconds},
                            {"processor_seconds", figures.processor_seconds},
                            {"plain_processor_seconds", figures.plain_processor_seconds},
                            {"first_seconds", figures.first_seconds},
                            {"nmse_mean", number(figures.nmse_mean)},
                            {"lanes", figures.lanes},
                            {"bucket_elements", figures.bucket_elements},
                            {"trial", trial_json(figures)},
                            {"warm_up", options.measured.warm_up},
                            {"repetitions", options.measured.repetitions}}
                   .dump(2)
            << '\n';
}

std::string text_of_hosts(const Options& options) {
  const std::vector<int>& hosts = options.measured.hosts;
  if (!has_two_levels(hosts)) return options.hosts == "flat" ? "" : ", on one level";
  const std::set distinct(hosts.begin(), hosts.end());
  return std::string(" on ").append(std::to_string(distinct.size())).append(" hosts");
}

void print_for_people(const Report& report, const Options& options) {
  const AllreduceFigures& figures = report.figures;
  const auto seconds = [](double value) { return short_number(1e3 * value) + " ms"; };
  const auto range = [&](const std::vector<double>& values) {
    return seconds(median(values)) + "   (" + seconds(std::ranges::min(values)) + " to " + seconds(std::ranges::max(values)) + ")";
  };
  for (const std::string& line : wrap(canonical_spec(options.measured.compressor), kLineWidth)) std::cout << line << '\n';
  std::cout << report.workers << (options.threads ? " workers (threads of one process)" : " workers") << text_of_hosts(options) << ", "
            << with_commas(options.measured.elements) << " elements, " << options.measured.repetitions << " repetitions\n\n";
  Table table({{"all-reduce", 26}, {"", 72}});
  table.add({"uncompressed", range(figures.plain_seconds)});
  table.add({"compressed", range(figures.seconds)});
  table.add({"", short_number(report.plain_seconds() / report.seconds()) + " times as fast; " + seconds(report.mean_seconds()) +
                     " on average"});
  table.add({"the first, with training", seconds(figures.first_seconds)});
  table.add({"traffic sent by a worker", short_bytes(figures.traffic_bytes) + " instead of " +
                                             short_bytes(figures.plain_traffic_bytes)});
  if (has_two_levels(options.measured.hosts))
    table.add({"within its host", short_bytes(figures.within_host_bytes)});
  if (figures.wire_bytes)
    table.add({"counted at the interface", short_bytes(*figures.wire_bytes) + " instead of " + short_bytes(*figures.plain_wire_bytes)});
  table.add({"encoding and decoding", seconds(figures.codec_seconds) + " of all lanes together"});
  table.add({"processor time of a worker", seconds(figures.processor_seconds) + " instead of " +
                                               seconds(figures.plain_processor_seconds)});
  const auto count = [](int number, const char* what) { return std::to_string(number) + what + (number == 1 ? "" : "s"); };
  table.add({"cut into", count(figures.buckets, " bucket") + " in " + count(figures.lanes, " lane") +
                             (figures.cost ? ", chosen by a trial:" : "")});
  if (const auto& cost = figures.cost)
    table.add({"", "one lane: codec " + seconds(cost->codec_seconds) + ", wire " + seconds(cost->wire_seconds) + ", a bucket " +
                       seconds(cost->bucket_codec_seconds + cost->bucket_wait_seconds) + " more"});
  if (figures.tried.size() > 1)
    for (const TriedDivision& each : figures.tried)
      table.add({"", count(each.buckets, " bucket") + " in " + count(each.lanes, " lane") + ": " + seconds(each.seconds)});
  if (figures.link.is_known())
    table.add({"the link, as measured", short_number(8e-9 * figures.link.bytes_per_second) + " Gb/s, " +
                                            seconds(figures.link.round_seconds) + " a round"});
  const auto even = report.break_even_gbps();
  table.add({"worth it below", even ? short_number(*even) + " Gb/s, even if nothing overlapped" : "-"});
  table.add({"error of the mean", (figures.nmse_mean ? short_number(*figures.nmse_mean) : "-") + std::string(" of its energy")});
  table.print(std::cout);
}

// In the form that chrome://tracing and ui.perfetto.dev read: a process is a worker, and a lane has a row for the codec
// and one for the wire. Times begin with the earliest event of all.
std::string trace_rows(const std::vector<TraceEvent>& events, int rank, int lanes) {
  ordered_json rows = ordered_json::array();
  const std::string worker = "worker " + std::to_string(rank);
  rows.push_back({{"ph", "M"}, {"pid", rank}, {"name", "process_name"}, {"args", {{"name", worker}}}});
  for (int row = 0; row < 2 * lanes; ++row) {
    const std::string name = "lane " + std::to_string(row / 2) + (row % 2 ? " wire" : " codec");
    rows.push_back({{"ph", "M"}, {"pid", rank}, {"tid", row}, {"name", "thread_name"}, {"args", {{"name", name}}}});
  }
  for (const TraceEvent& event : events)
    rows.push_back({{"ph", "X"}, {"pid", rank}, {"tid", 2 * event.lane + event.wire}, {"name", event.name},
                    {"ts", 1e6 * event.begin}, {"dur", 1e6 * (event.end - event.begin)}});
  return rows.dump();
}

void write_trace(const std::string& path, const std::vector<std::string>& workers) {
  ordered_json events = ordered_json::array();
  for (const std::string& rows : workers)
    for (ordered_json& row : ordered_json::parse(rows)) events.push_back(std::move(row));
  double first = 1e300;
  for (const ordered_json& event : events)
    if (event.contains("ts")) first = std::min(first, event["ts"].get<double>());
  for (ordered_json& event : events)
    if (event.contains("ts")) event["ts"] = event["ts"].get<double>() - first;
  write_text(path, ordered_json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump() + '\n');
}

// One worker's whole part; worker 0 prints.
void work(Lanes& lanes, const Options& options) {
  Trace trace;
  const bool traced = options.measured.trace.has_value();
  Report report;
  report.workers = lanes[0]->world_size();
  report.figures = measure_allreduce(lanes, options.measured, traced ? &trace : nullptr);
  const int rank = lanes[0]->rank();
  if (traced) {
    const auto all = gather_texts(trace_rows(trace.take(), rank, report.figures.lanes), *lanes[0]);
    if (rank == 0) write_trace(*options.measured.trace, all);
  }
  if (rank != 0) return;
  options.json ? print_json(report, options) : print_for_people(report, options);
}

// All workers on one host: they are taken for workers that share none, so that what is tried on one machine is what happens between several.
std::vector<int> two_levels_or_one(std::vector<int> hosts) { return has_two_levels(hosts) ? std::move(hosts) : std::vector<int>(); }

// Throws ArgumentError.
std::vector<int> listed_hosts(const std::string& text, int workers) {
  if (text == "flat") return {};
  std::vector<int> hosts;
  std::istringstream numbers(text);
  for (std::string number; std::getline(numbers, number, ',');) {
    if (number.empty() || number.size() > 6 || number.find_first_not_of("0123456789") != std::string::npos) {
      hosts.clear();
      break;
    }
    hosts.push_back(std::stoi(number));
  }
  if (hosts.size() != static_cast<std::size_t>(workers))
    throw ArgumentError("--hosts is '" + text + "'; allowed: auto, flat, or a number for each of the " + std::to_string(workers) +
                        " workers that names its host, such as 0,0,1,1");
  return hosts;
}

void run_threads(const Options& options) {
  std::vector<Lanes> workers(static_cast<std::size_t>(options.threads));
  Options of_each = options;
  of_each.measured.workers_of_process = options.threads;
  of_each.measured.hosts = listed_hosts(options.hosts == "auto" ? "flat" : options.hosts, options.threads);
  for (int lane = 0; lane < options.groups(); ++lane) {
    auto ends = make_local_communicators(options.threads, options.patience(), of_each.measured.hosts);
    for (std::size_t rank = 0; rank < workers.size(); ++rank) workers[rank].push_back(std::move(ends[rank]));
  }
  std::mutex mutex;
  std::exception_ptr failure;
  {
    std::vector<std::jthread> threads;
    for (Lanes& lanes : workers)
      threads.emplace_back([&] {
        try {
          work(lanes, of_each);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!failure) failure = std::current_exception();
          for (auto& lane : lanes) lane->abandon();
        }
      });
  }
  if (failure) std::rethrow_exception(failure);
}

#ifdef THINWIRE_MPI
Progress progress_of(const Options& options) {
  return options.progress == "caller" ? Progress::kCaller : options.progress == "thread" ? Progress::kThread : Progress::kAutomatic;
}

void run_processes(const Options& options) {
  const MpiEnvironment environment;
  try {
    Options told = options;
    if (options.hosts == "auto") {
      const auto first = make_mpi_communicators({.timeout = options.patience(), .progress = progress_of(options)});
      told.measured.hosts = two_levels_or_one(find_hosts(*first[0]));
    } else {
      told.measured.hosts = listed_hosts(options.hosts, environment.world_size());
    }
    auto lanes = make_mpi_communicators({.lanes = options.groups(), .timeout = options.patience(), .hosts = told.measured.hosts,
                                         .progress = progress_of(options)});
    work(lanes, told);
  } catch (const Error& error) {
    throw Error("worker " + std::to_string(environment.rank()) + ": " + error.what());
  }
}
#else
void run_processes(const Options&) {
  throw ArgumentError("this build has no MPI: install Open MPI (libopenmpi-dev, openmpi-bin) and build again, or give --workers");
}
#endif

void run_allreduce(Options& options) {
  canonical_spec(options.measured.compressor);
  if (options.layout) {
    options.measured.layout = read_layout(*options.layout, std::nullopt);
    options.measured.elements = options.measured.layout->elements();
    if (options.measured.elements == 0) throw Error(*options.layout + ": has no elements to average");
  }
  options.threads ? run_threads(options) : run_processes(options);
}

}  // namespace

Command add_allreduce(CLI::App& tool) {
  const auto options = std::make_shared<Options>();
  AllreduceOptions& measured = options->measured;
  CLI::App* app = tool.add_subcommand("allreduce", "Averages gradients over MPI processes, against plain all-reduce");
  app->add_option("--compressor", measured.compressor, "How to compress, e.g. casq:bits=2")->required()->type_name("SPEC");
  app->add_option("--elements", measured.elements, "Length of the gradient; default 25,600,000")
      ->type_name("N")
      ->check(whole_number(1, 10'000'000'000));
  app->add_option("--layout", options->layout, "The parameters, as JSON (see `thinwire exchange --help`), instead of --elements")
      ->type_name("FILE")
      ->excludes("--elements");
  app->add_option("--workers", options->threads, "Threads of this process as workers, without MPI")
      ->type_name("W")
      ->check(whole_number(1, kMostWorkers));
  app->add_option("--hosts", options->hosts,
                  "auto: workers of a machine add up their gradients, and each compresses a part of them for the other machines; or a "
                  "number for each worker that names its host, 0,0,1,1; default flat")
      ->type_name("HOSTS");
  app->add_option("--bucket", measured.bucket_elements, "Elements that are averaged at a time; default: by a trial")
      ->type_name("N")
      ->check(whole_number(1, 10'000'000'000));
  app->add_option("--lanes", measured.lanes, "Buckets on their way at once; default: by a trial")->type_name("L")->check(whole_number(1, 64));
  app->add_option("--threads", measured.threads, "Threads of each worker that encode and decode; default 1")
      ->type_name("T")
      ->check(whole_number(1, kMostThreads));
  app->add_option("--warm-up", measured.warm_up, "Compressed reductions before those that count; default 1")
      ->type_name("R")
      ->check(whole_number(1, 10'000));
  app->add_option("--repetitions", measured.repetitions, "Of which the median counts; default 7")
      ->type_name("R")
      ->check(whole_number(1, 10'000));
  app->add_option("--seed", measured.seed, "Of all that is random; default 0")
      ->type_name("S")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()));
  app->add_option("--progress", options->progress,
                  "Who moves messages: a thread of its own, or the caller, who waits for them; default: a thread where MPI allows it")
      ->type_name("thread|caller")
      ->check(CLI::IsMember({"auto", "thread", "caller"}));
  app->add_option("--timeout", options->timeout, "Seconds without any progress after which workers give up; default 300")
      ->type_name("S")
      ->check(CLI::Range(0.001, 1e6));
  app->add_option("--trace", measured.trace, "Write a timeline of the last reduction, for ui.perfetto.dev")->type_name("FILE");
  app->add_option("--interface", measured.interface, "Count the bytes that leave this network interface, such as eth0")
      ->type_name("NAME");
  app->add_flag("--json", options->json, "Print one JSON object");
  app->footer(R"TEXT(Every worker has a gradient of its own. Uncompressed and compressed reductions take turns, after one of
each that opens connections and trains clusters; uncompressed in buckets of 25 MiB, as DDP does. All workers' means are
compared bit by bit. With a layout, every bucket ends with the parameter that fills it.
  seconds          from when all workers are there until the last has the mean; medians
  mean_seconds     its mean: over a whole cycle of gradiveq with learning steps and bases
  trial            without --bucket or --lanes: what one lane needed for codec and wire, and for each further
                   bucket, by which lanes are chosen; and how long each division took in its lanes, of which
                   the fastest is taken
  traffic_bytes    what a worker sends in one reduction, by the collectives' standard algorithms; with --hosts to
                   other hosts, and within_host_bytes to workers of its own
  wire_bytes       with --interface: what its counter adds up to in one reduction, headers included
  codec_seconds    encoding and decoding in one reduction, over all lanes
  processor_seconds  of all a worker's threads and of the system for them, in one reduction
  link_gbps, round_seconds  what a worker sends while all do so, and a round that moves next to nothing takes, as
                   measured beforehand; `reduce=auto` chooses by them
  break_even_gbps  8 (plain_traffic_bytes - traffic_bytes) / codec_seconds: on slower links compressing
                   pays even where nothing overlaps
  nmse_mean        |compressed mean - uncompressed mean|^2 / |uncompressed mean|^2, of the first

Examples:
  mpirun -n 4 thinwire allreduce --compressor casq:bits=2,reduce=scatter
  mpirun -n 16 --hostfile hosts thinwire allreduce --compressor casq:bits=2 --hosts auto
  mpirun -n 4 --hostfile hosts thinwire allreduce --compressor casq:bits=2 --trace timeline.json
  thinwire allreduce --workers 3 --compressor bf16 --elements 1000000 --json)TEXT");
  return {app, [options] { run_allreduce(*options); }};
}

}  // namespace thinwire::tool
