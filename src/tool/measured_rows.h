// What benchmarks measured, and the plans that predict it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tool/planning.h"

namespace thinwire::tool {

inline constexpr const char* kPlainSums = "plain";  // what benchmarks call all-reduce as it is
inline constexpr double kElementsOfAMiB = 262'144;
inline constexpr int kAnyLanes = 64;                // DDP's own all-reduces wait for nothing

struct MeasuredRow {
  std::string link, path, spec;
  double seconds = 0;
  std::optional<double> sending_seconds;  // a byte of the processor, where the file tells
  PlanOptions plan;                       // without `specs` the plain sum
};

struct MeasuredRows {
  std::vector<MeasuredRow> rows;
  std::size_t left_out = 0;  // rows that the tool cannot predict
};

// Sets the spec of a row as the tool calls it. False for what it cannot predict: PyTorch's own hooks, where `has_hooks`; two compressors; what trains without DDP, or decides
// itself; and one level where `per_host` workers share a link.
bool set_spec(const std::string& spec, int per_host, bool has_hooks, PlanOptions& plan);

// Of a network.json of bench.network, a results.json of ./run, and a scale.json of bench.scale. `given`: what all rows have in common; its cores are known.
// Throw Json's exceptions for files that are none of that kind.
MeasuredRows rows_of_network(const nlohmann::ordered_json& network, PlanOptions given);
MeasuredRows rows_of_training(const nlohmann::ordered_json& results, PlanOptions given);
MeasuredRows rows_of_simulation(const nlohmann::ordered_json& simulation, const PlanOptions& given);

}  // namespace thinwire::tool
