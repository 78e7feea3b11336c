#include <algorithm>
#include <utility>

#include "tool/measured_rows.h"

namespace thinwire::tool {
namespace {

using Json = nlohmann::ordered_json;

Layout layout_of(const Json& parameters) {
  std::vector<Parameter> all;
  for (const Json& parameter : parameters) all.push_back({parameter.at("name"), parameter.at("shape")});
  return Layout(std::move(all));
}

}  // namespace

MeasuredRows rows_of_training(const Json& results, PlanOptions given) {
  const Json &settings = results.at("settings"), &network = results.at("network"), &runs = results.at("runs"), &summary = results.at("summary");
  given.workers = settings.at("workers");
  given.per_host = 1;
  const int per_host = settings.value("per_host", 1);
  given.layout = layout_of(network.at("parameters"));
  given.hidden = std::clamp(static_cast<double>(given.cores.value()) / given.workers - 1, 0.0, 1.0);
  given.compute_seconds = network.at("ddp_step_seconds");
  MeasuredRows measured;
  const std::string link = network.at("link");
  for (const Json& row : summary) {
    const std::string spec = row.at("compressor");
    const bool is_plain = spec == kPlainSums;
    PlanOptions plan = given;
    plan.specs.clear();
    if (!network.at("shaped").get<bool>() || (!is_plain && !set_spec(spec, per_host, true, plan))) {
      ++measured.left_out;
      continue;
    }
    const auto run = std::ranges::find_if(runs, [&](const Json& each) { return each.at("compressor") == spec; });
    plan.link = {.bytes_per_second = network.at("payload_bits_per_second").get<double>() * kWithHeaders / 8, .round_seconds = network.at(is_plain ? "backend_round_seconds" : "round_seconds")};
    plan.lanes = is_plain ? kAnyLanes : run->at("lanes").get<int>();
    plan.has_whole_rounds = is_plain;  // which PyTorch's backend moves
    measured.rows.push_back({link, "DDP", spec, row.at("step_seconds"), network.at("sending_seconds_per_byte").get<double>(), std::move(plan)});
  }
  return measured;
}

}  // namespace thinwire::tool
