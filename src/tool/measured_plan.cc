#include "tool/measured_plan.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <thread>
#include <tuple>

#include <nlohmann/json.hpp>

#include "thinwire/errors.h"
#include "tool/allreduce.h"
#include "tool/sending_cost.h"
#include "tool/text_file.h"

namespace thinwire::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPlain = "plain";
constexpr const char* kAlone = "(no exchange)";
constexpr int kAnyLanes = 64;  // DDP's own all-reduces wait for nothing
constexpr double kElementsOfAMiB = 262'144;

Json read_network(const std::string& path) {
  Json network = Json::parse(read_text(path), nullptr, /*allow_exceptions=*/false);
  if (!network.is_object() || !network.contains("rows") || !network["rows"].is_array() || !network.contains("settings"))
    throw Error(path + ": is not what bench.network writes: a JSON object with settings and rows");
  return network;
}

// What DDP does itself, beside which a row's exchange was: that of as long a gradient on the same link. Null: nobody measured it.
const Json* alone_beside(const Json& rows, const Json& row) {
  const auto is_it = [&](const Json& other) {
    return other.at("path") == "DDP" && other.at("compressor") == kAlone && other.at("link") == row.at("link") && other.at("elements") == row.at("elements");
  };
  const auto found = std::ranges::find_if(rows, is_it);
  return row.at("path") == "DDP" && found != rows.end() ? &*found : nullptr;
}

double processor_seconds(const Json& row) { return row.value("processor_seconds", 0.0); }

// Seconds that a worker's plain sum had of the processor, DDP's own apart. Nothing where that is not known. MPI's workers look at their messages again and again
// while they wait, so that their processor time says nothing.
std::optional<double> sending_seconds_of(const Json& rows, const Json& row, double cores_of_worker) {
  const Json* alone = alone_beside(rows, row);
  const double seconds = row.at("seconds").get<double>(), wire = row.at("traffic_bytes").get<double>() / parse_rate(row.at("link").get<std::string>());
  if (wire < seconds / 2) return cores_of_worker * std::max(0.0, seconds - (alone ? alone->at("seconds").get<double>() : 0));
  if (!row.contains("processor_seconds")) return std::nullopt;
  return std::max(0.0, processor_seconds(row) - (alone ? processor_seconds(*alone) : 0));
}

// Seconds a byte of the processor.
std::optional<double> sending_in(const Json& rows, const std::string& path, double cores_of_worker) {
  std::optional<double> sending;
  std::tuple<double, double> best;  // the most elements, and of these the least time
  for (const Json& row : rows) {
    if (row.at("path") != path || row.at("compressor") != kPlain || row.at("link") == "none") continue;
    const auto seconds = sending_seconds_of(rows, row, cores_of_worker);
    const std::tuple candidate(row.at("elements").get<double>(), -row.at("seconds").get<double>());
    if (!seconds || (sending && candidate <= best)) continue;
    best = candidate;
    sending = *seconds / row.at("traffic_bytes").get<double>();
  }
  return sending;
}

// How a row's message was cut, and what `thinwire plan` calls its spec; nothing for what the tool cannot do itself.
std::optional<PlanOptions> options_for(const Json& row, const Json* alone, int per_host, PlanOptions options) {
  static const std::set<std::string> kPytorchs = {"bf16", "fp16", "powersgd", kAlone};
  const std::string spec = row.at("compressor").get<std::string>(), path = row.at("path").get<std::string>(), link = row.at("link").get<std::string>();
  if (link == "none") return std::nullopt;
  options.link.bytes_per_second = parse_rate(link);
  options.elements = row.at("elements").get<std::uint64_t>();
  if (row.contains("round_seconds") && row["round_seconds"].is_number()) options.link.round_seconds = row["round_seconds"].get<double>();
  options.specs.clear();
  if (alone) {  // gradients are copied one after another, on the cores that encode them
    options.compute_seconds = alone->at("seconds").get<double>();
    options.forward_share = options.hidden = 0;
  }
  const bool through_mpi = path == "MPI";
  if (spec == kPlain) {
    options.lanes = through_mpi ? kPlainLanes : kAnyLanes;
    if (through_mpi) options.bucket_mb = static_cast<double>(kBucketElements) / kElementsOfAMiB;
    return options;
  }
  const bool on_two_levels = spec.starts_with(kOnTwoLevels);
  if (on_two_levels != (per_host > 1) || (!through_mpi && kPytorchs.contains(spec))) return std::nullopt;
  options.per_host = per_host;
  const std::string ours = on_two_levels ? spec.substr(kOnTwoLevels.size()) : spec;
  constexpr std::string_view kOurs = "thinwire:";
  options.specs = {ours.starts_with(kOurs) ? ours.substr(kOurs.size()) : ours};
  if (row.contains("lanes") && row["lanes"].is_number()) options.lanes = row["lanes"].get<int>();
  if (row.contains("bucket_elements") && row["bucket_elements"].is_number()) options.bucket_mb = row["bucket_elements"].get<double>() / kElementsOfAMiB;
  return options;
}

std::vector<double> magnitudes(const std::vector<ComparedRow>& rows) {
  std::vector<double> off;
  for (const ComparedRow& row : rows) off.push_back(std::abs(row.off()));
  std::ranges::sort(off);
  return off;
}

}  // namespace

double Compared::median_off() const {
  const std::vector<double> off = magnitudes(rows);
  return off.empty() ? 0 : 0.5 * (off[off.size() / 2] + off[(off.size() - 1) / 2]);
}

double Compared::worst_off() const { return rows.empty() ? 0 : magnitudes(rows).back(); }

Compared compare_with_measured(const std::string& path, const PlanOptions& given, const std::function<void(const std::string& spec)>& predicting) {
  const Json network = read_network(path);
  Compared compared;
  try {
    PlanOptions options = given;
    options.workers = Json::parse(network["settings"].at("workers").get<std::string>()).get<int>();
    options.per_host = 1;
    const int per_host = Json::parse(network["settings"].value("per_host", "1")).get<int>();
    if (!options.cores) options.cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    compared.cores = *options.cores;
    const auto sending_of = [&](const std::string& path_of_row) {
      const auto [known, is_new] = compared.sending_seconds.try_emplace(path_of_row);
      if (!is_new) return known->second;
      const auto found = given.sending_seconds ? given.sending_seconds : sending_in(network["rows"], path_of_row, static_cast<double>(*options.cores) / options.workers);
      return known->second = found ? *found : measure_sending();
    };
    for (const Json& row : network["rows"]) {
      std::optional<PlanOptions> of_row = options_for(row, alone_beside(network["rows"], row), per_host, options);
      if (!of_row) {
        ++compared.left_out;
        continue;
      }
      of_row->sending_seconds = sending_of(row.at("path").get<std::string>());
      const std::string spec = of_row->specs.empty() ? kPlainSpec : of_row->named(of_row->specs.front());
      predicting(spec);
      const Plan plan = make_plan(*of_row, [](const std::string&) {});
      const auto found = std::ranges::find(plan.rows, spec, &PlanRow::spec);
      compared.rows.push_back({row.at("link"), row.at("path"), row.at("compressor"), of_row->elements, row.at("seconds"), found->time.seconds});
    }
  } catch (const Json::exception& error) {
    throw Error(path + ": is not what bench.network writes: " + error.what());
  }
  return compared;
}

}  // namespace thinwire::tool
