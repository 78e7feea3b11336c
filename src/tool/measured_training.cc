#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "thinwire/errors.h"
#include "thinwire/registry.h"
#include "tool/measured_rows.h"
#include "tool/samples.h"

namespace thinwire::tool {
namespace {

using Json = nlohmann::ordered_json;

Layout layout_of(const Json& parameters) {
  std::vector<Parameter> all;
  for (const Json& parameter : parameters) all.push_back({parameter.at("name"), parameter.at("shape")});
  return Layout(std::move(all));
}

// As the tool calls it; nothing for PyTorch's own hooks, for two compressors, and for what trains without DDP or decides itself.
std::optional<std::string> compressor_of(std::string spec) {
  constexpr std::string_view kOurs = "thinwire:";
  const bool is_ours = spec.starts_with(kOurs);
  if (is_ours) spec.erase(0, kOurs.size());
  if (!is_ours && (spec == "bf16" || spec == "fp16" || spec.starts_with("powersgd"))) return std::nullopt;
  try {
    return canonical_spec(spec);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

// All trainings compute the same, so that what a step takes without an exchange is the median of what was measured before each.
MeasuredRows rows_of_training(const Json& results, PlanOptions given) {
  const Json &settings = results.at("settings"), &network = results.at("network"), &runs = results.at("runs"), &summary = results.at("summary");
  given.workers = settings.at("workers");
  given.per_host = 1;
  given.layout = layout_of(network.at("parameters"));
  given.hidden = std::clamp(static_cast<double>(given.cores.value()) / given.workers - 1, 0.0, 1.0);
  std::vector<double> computing;
  for (const Json& row : summary) computing.push_back(row.at("compute_seconds"));
  if (!computing.empty()) given.compute_seconds = median(computing);
  MeasuredRows measured;
  measured.sending_seconds["DDP"] = network.at("sending_seconds_per_byte");
  const std::string link = network.at("link");
  for (const Json& row : summary) {
    const std::string spec = row.at("compressor");
    const bool is_plain = spec == kPlainSums;
    const std::optional<std::string> compressor = is_plain ? std::nullopt : compressor_of(spec);
    if (!network.at("shaped").get<bool>() || (!is_plain && !compressor)) {
      ++measured.left_out;
      continue;
    }
    const auto run = std::ranges::find_if(runs, [&](const Json& each) { return each.at("compressor") == spec; });
    PlanOptions plan = given;
    plan.link = {.bytes_per_second = parse_rate(link), .round_seconds = network.at(is_plain ? "backend_round_seconds" : "round_seconds")};
    plan.lanes = is_plain ? kAnyLanes : run->at("lanes").get<int>();
    plan.specs.clear();
    if (compressor) plan.specs.push_back(*compressor);
    measured.rows.push_back({link, "DDP", spec, row.at("step_seconds"), std::move(plan)});
  }
  return measured;
}

}  // namespace thinwire::tool
