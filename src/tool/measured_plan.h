// Predictions beside what `bench.network` and ./run measured.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tool/planning.h"

namespace thinwire::tool {

inline constexpr const char* kNetworkAlone = " *";  // behind the link, where workers were simulated to compute in no time

struct ComparedRow {
  std::string link, path, spec;
  std::uint64_t elements = 0;
  double measured_seconds = 0;
  double predicted_seconds = 0;
  double sending_seconds = 0;  // a byte of the processor

  double off() const { return predicted_seconds / measured_seconds - 1; }
};

struct Compared {
  std::optional<int> cores;  // of all workers; nothing: each had its own
  std::vector<ComparedRow> rows;
  std::size_t left_out = 0;  // what PyTorch's own hooks, two levels or links without a rate did

  double median_off() const;  // of magnitudes; 0 without rows
  double worst_off() const;
};

// `path`: a network.json, a results.json or a scale.json. The workers of the first two were on one machine, which `given.cores` says how many cores it has, else this one's. What sending takes of the
// processor is, unless `given` says it, what the file tells: bench.network's longest plain sum of the same path on the fastest link, what DDP does itself left out (where
// its bytes take the link less than half of its time, all cores for all of it; else what it had of the processor), or what DDP's longest plain sum on the same link had, if that
// is more; or ./run's all-reduce before it trains; where that is not known, as measured here. Throws
// Error for a file that cannot be read or is none of that kind. predicting: is told of each row before its codec is measured.
Compared compare_with_measured(const std::string& path, PlanOptions given, const std::function<void(const std::string& spec)>& predicting);

}  // namespace thinwire::tool
