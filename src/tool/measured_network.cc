#include <algorithm>
#include <optional>
#include <tuple>

#include "tool/allreduce.h"
#include "tool/measured_rows.h"

namespace thinwire::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAlone = "(no exchange)";
constexpr double kElementsOfAMiB = 262'144;

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
    if (row.at("path") != path || row.at("compressor") != kPlainSums || row.at("link") == "none") continue;
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
  if (spec == kPlainSums) {
    options.lanes = through_mpi ? kPlainLanes : kAnyLanes;
    if (through_mpi) options.bucket_mb = static_cast<double>(kBucketElements) / kElementsOfAMiB;
    return options;
  }
  if (!set_spec(spec, per_host, !through_mpi, options)) return std::nullopt;
  if (row.contains("lanes") && row["lanes"].is_number()) options.lanes = row["lanes"].get<int>();
  if (row.contains("bucket_elements") && row["bucket_elements"].is_number()) options.bucket_mb = row["bucket_elements"].get<double>() / kElementsOfAMiB;
  return options;
}

}  // namespace

MeasuredRows rows_of_network(const Json& network, PlanOptions given) {
  const Json& settings = network.at("settings");
  given.workers = Json::parse(settings.at("workers").get<std::string>()).get<int>();
  given.per_host = 1;
  const int per_host = Json::parse(settings.value("per_host", "1")).get<int>();
  MeasuredRows measured;
  for (const Json& row : network.at("rows")) {
    const std::string path = row.at("path").get<std::string>();
    if (!measured.sending_seconds.contains(path))
      if (const auto sending = sending_in(network["rows"], path, static_cast<double>(given.cores.value()) / given.workers)) measured.sending_seconds[path] = *sending;
    const std::optional<PlanOptions> plan = options_for(row, alone_beside(network["rows"], row), per_host, given);
    if (plan)
      measured.rows.push_back({row.at("link"), path, row.at("compressor"), row.at("seconds"), *plan});
    else
      ++measured.left_out;
  }
  return measured;
}

}  // namespace thinwire::tool
