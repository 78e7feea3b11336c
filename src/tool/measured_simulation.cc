#include <algorithm>

#include "tool/measured_plan.h"
#include "tool/measured_rows.h"

namespace thinwire::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPath = "SMPI";

// Of the ranks and their link alone: each has cores of its own, and sending takes none of them.
PlanOptions options_for(const Json& row, PlanOptions options) {
  options.cores.reset();
  options.workers = row.at("ranks");
  options.per_host = row.at("ranks_a_host");
  options.elements = row.at("elements");
  options.link = {.bytes_per_second = row.at("payload_bits_per_second").get<double>() * kWithHeaders / 8, .round_seconds = row.at("latency_seconds")};
  options.bucket_mb = row.at("bucket_elements").get<double>() / kElementsOfAMiB;
  options.lanes = row.at("lanes");
  options.codecs_count = row.value("computes", true);
  options.specs.clear();
  return options;
}

// "10gbit, 16" ranks, or "10gbit, 2x8" on hosts; "10gbit, 16 *" where they compute in no time.
std::string link_text(const Json& row) {
  const int ranks = row.at("ranks"), a_host = row.at("ranks_a_host");
  const std::string hosts = a_host > 1 ? std::to_string(ranks / a_host) + "x" + std::to_string(a_host) : std::to_string(ranks);
  return row.at("link").get<std::string>() + ", " + hosts + (row.value("computes", true) ? "" : kNetworkAlone);
}

}  // namespace

MeasuredRows rows_of_simulation(const Json& simulation, const PlanOptions& given) {
  MeasuredRows measured;
  for (const Json& row : simulation.at("rows")) {
    PlanOptions plan = options_for(row, given);
    const std::string spec = row.at("spec"), link = link_text(row);
    const auto is_its_plain_sum = [&](const MeasuredRow& other) { return other.spec == kPlainSums && other.link == link && other.plan.elements == plan.elements; };
    if (std::ranges::none_of(measured.rows, is_its_plain_sum)) measured.rows.push_back({link, kPath, kPlainSums, row.at("plain_seconds"), 0.0, plan});
    if (spec == kPlainSums) continue;  // auto has taken them
    plan.specs = {spec};
    measured.rows.push_back({link, kPath, spec, row.at("seconds"), 0.0, std::move(plan)});
  }
  return measured;
}

}  // namespace thinwire::tool
