#include <algorithm>
#include <optional>
#include <tuple>

#include "tool/allreduce.h"
#include "tool/measured_rows.h"

namespace thinwire::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAlone = "(no exchange)";

// What DDP does itself, beside which a row's exchange was: that of as long a gradient on the same link. Null: nobody measured it.
const Json* alone_beside(const Json& rows, const Json& row) {
  const auto is_it = [&](const Json& other) {
    return other.at("path") == "DDP" && other.at("compressor") == kAlone && other.at("link") == row.at("link") && other.at("elements") == row.at("elements");
  };
  const auto found = std::ranges::find_if(rows, is_it);
  return row.at("path") == "DDP" && found != rows.end() ? &*found : nullptr;
}

// Of the row's link, as plain sockets found it; 0: nobody did.
double rate_of_link(const Json& rows, const Json& row) {
  const auto is_it = [&](const Json& other) { return other.at("link") == row.at("link") && other.contains("payload_bits_per_second"); };
  const auto found = std::ranges::find_if(rows, is_it);
  return found != rows.end() && found->at("payload_bits_per_second").is_number() ? found->at("payload_bits_per_second").get<double>() : 0;
}

double processor_seconds(const Json& row) { return row.value("processor_seconds", 0.0); }

// Seconds a byte of the processor, as a worker's plain sum had them, DDP's own apart. Nothing where that is not known.
struct Sending {
  std::optional<double> by_all_cores;  // all its cores for all of its time, where its bytes take the link less than half of that
  std::optional<double> as_counted;    // but not where workers wait by looking for messages again and again, as MPI's do
};

Sending sending_of(const Json& rows, const Json& row, double cores_of_worker) {
  const Json* alone = alone_beside(rows, row);
  const double seconds = row.at("seconds").get<double>(), bytes = row.at("traffic_bytes").get<double>();
  Sending sending;
  if (bytes / parse_rate(row.at("link").get<std::string>()) < seconds / 2)
    sending.by_all_cores = cores_of_worker * std::max(0.0, seconds - (alone ? alone->at("seconds").get<double>() : 0)) / bytes;
  if (row.at("path") == "DDP" && row.contains("processor_seconds"))
    sending.as_counted = std::max(0.0, processor_seconds(row) - (alone ? processor_seconds(*alone) : 0)) / bytes;
  return sending;
}

// A row's, by its path, on its link. A link that is shaped to be slow takes the processor longer than a fast one, which says most of the path: the longest
// plain sum of either tells. Short gradients lie in caches, so that their bytes take less: no more than all of the time of a plain sum as short.
std::optional<double> sending_in(const Json& rows, const Json& of, double cores_of_worker) {
  const Json *on_path = nullptr, *on_link = nullptr;
  std::optional<double> most;
  const auto tells_more = [](const Json& row, const Json* than) {
    const auto rank = [](const Json& it) { return std::tuple(it.at("elements").get<double>(), -it.at("seconds").get<double>()); };
    return !than || rank(row) > rank(*than);
  };
  for (const Json& row : rows) {
    if (row.at("compressor") != kPlainSums || row.at("link") == "none") continue;
    const Sending sending = sending_of(rows, row, cores_of_worker);
    const bool is_on_path = row.at("path") == of.at("path");
    if (is_on_path && (sending.by_all_cores || sending.as_counted) && tells_more(row, on_path)) on_path = &row;
    if (row.at("link") == of.at("link") && sending.as_counted && tells_more(row, on_link)) on_link = &row;
    if (is_on_path && sending.by_all_cores && row.at("elements") == of.at("elements")) most = std::min(most.value_or(*sending.by_all_cores), *sending.by_all_cores);
  }
  std::optional<double> seconds;
  if (on_path) {
    const Sending sending = sending_of(rows, *on_path, cores_of_worker);
    seconds = sending.by_all_cores ? sending.by_all_cores : sending.as_counted;
    if (most) seconds = std::min(*seconds, *most);
  }
  if (on_link) seconds = std::max(seconds.value_or(0), *sending_of(rows, *on_link, cores_of_worker).as_counted);
  return seconds;
}

// How a row's message was cut, and what `thinwire plan` calls its spec; nothing for what the tool cannot do itself.
std::optional<PlanOptions> options_for(const Json& row, const Json* alone, double payload_rate, int per_host, PlanOptions options) {
  const std::string spec = row.at("compressor").get<std::string>(), path = row.at("path").get<std::string>(), link = row.at("link").get<std::string>();
  if (link == "none") return std::nullopt;
  options.link.bytes_per_second = payload_rate > 0 ? payload_rate * kWithHeaders / 8 : parse_rate(link);
  options.elements = row.at("elements").get<std::uint64_t>();
  if (row.contains("round_seconds") && row["round_seconds"].is_number()) options.link.round_seconds = row["round_seconds"].get<double>();
  options.specs.clear();
  // What a step takes before anything is exchanged, and DDP, which copies one gradient after another on the cores that encode them.
  const double start = row.value("start_seconds", 0.0);
  options.compute_seconds = start + (alone ? alone->at("seconds").get<double>() : 0);
  options.forward_share = options.compute_seconds > 0 ? start / options.compute_seconds : 0;
  options.hidden = 0;
  const bool through_mpi = path == "MPI";
  if (spec == kPlainSums) {
    options.lanes = through_mpi ? kPlainLanes : kAnyLanes;
    options.has_whole_rounds = !through_mpi;
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
  const Json& rows = network.at("rows");
  for (const Json& row : rows) {
    const std::string path = row.at("path").get<std::string>(), link = row.at("link").get<std::string>();
    const std::optional<PlanOptions> plan = options_for(row, alone_beside(rows, row), rate_of_link(rows, row), per_host, given);
    if (!plan) {
      ++measured.left_out;
      continue;
    }
    const double cores_of_worker = static_cast<double>(given.cores.value()) / given.workers;
    measured.rows.push_back({link, path, row.at("compressor"), row.at("seconds"), sending_in(rows, row, cores_of_worker), *plan});
  }
  return measured;
}

}  // namespace thinwire::tool
