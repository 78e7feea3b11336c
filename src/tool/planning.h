// The plan that `thinwire plan` makes: what each spec would cost on a network, from codecs that are measured here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/step_time.h"
#include "tool/plan.h"

namespace thinwire::tool {

inline constexpr double kWithHeaders = 1514.0 / 1448;  // bytes on the link for each of a message: full TCP segments in Ethernet's frames

inline constexpr const char* kPlainSpec = "none";
inline constexpr std::string_view kOnTwoLevels = "hosts:";  // before a spec: workers of a host send as one

struct PlanOptions {
  Link link{.bytes_per_second = 0, .round_seconds = 200e-6};
  int workers = 4;
  int per_host = 1;  // of them, that share a host's link; then all but kPlainSpec goes on two levels
  bool has_whole_rounds = false;  // link.round_seconds is what a sum of next to nothing took, with all of its hops, and not one message
  std::optional<Layout> layout;
  std::uint64_t elements = 25'600'000;  // where there is none
  double compute_seconds = 0;
  double forward_share = 1.0 / 3;  // of it, before the first gradient
  std::optional<double> bucket_mb;
  int lanes = 4;
  int threads = 1;
  double hidden = 1;
  std::optional<double> sending_seconds;  // a byte; else it is measured
  std::optional<int> cores;               // of a machine that all workers share; else each has its own
  bool codecs_count = true;               // else as if they took no time: what the network alone takes
  std::vector<std::string> specs = {kPlainSpec, "bf16", "casq:bits=2", "casq:bits=2,reduce=scatter", "casq:rate=1,reduce=scatter",
                                    "casq:rate=0.5,reduce=scatter", "eden:bits=2,reduce=scatter", "powersgd:rank=4", "topk:density=0.01"};

  // How much longer the processor takes where workers share it, each with so many threads.
  double crowding(int busy_threads) const { return cores ? std::max(1.0, static_cast<double>(workers) * busy_threads / *cores) : 1; }
  // How many more compute at the same time where codecs are measured.
  int beside() const { return cores ? std::min({*cores, workers, kMostAtOnce}) - 1 : 0; }
  static constexpr int kMostAtOnce = 4;  // each has memory of its own
  // What a row is called.
  std::string named(const std::string& compressor) const;
  // Numbers of workers, of a spec on two levels of hosts, by which costs are measured where the sample has so many elements: theirs, or what more follow from.
  std::vector<int> tried(bool on_two_levels, std::uint64_t sampled) const;
  int parties(bool on_two_levels) const { return on_two_levels ? workers / per_host : workers; }
};

struct PlanRow {
  std::string spec;
  int senders = 1;  // through a link at once; a ring of plain sums leaves a host by one worker
  std::vector<BucketCost> buckets;
  std::optional<double> error;
  StepTime time;
  Limit limit = Limit::kLink;
  double speedup = 1;     // over kPlainSpec
  double pays_below = 0;  // bytes a second

  double bytes() const;
  int rounds() const;
  bool on_two_levels() const { return spec.starts_with(kOnTwoLevels); }
  std::string compressor() const { return on_two_levels() ? spec.substr(kOnTwoLevels.size()) : spec; }
};

struct Plan {
  StepCost step;
  double sending_seconds = 0;  // a byte that a worker sends, with its core to itself
  std::uint64_t elements = 0;
  std::vector<std::uint64_t> bucket_elements;
  std::uint64_t measured_elements = 0;
  std::vector<PlanRow> rows;  // the fastest first

  double codec_crowding = 1;  // how much longer codecs take among the workers
  // A row's step for the model: bytes with their headers, and codecs as long as they take among the workers.
  ModelledStep modelled(const PlanRow& row) const;
  double bits(const PlanRow& row) const { return 8 * row.senders * row.bytes() / static_cast<double>(elements); }
};

// measuring: is told of each spec before it is measured.
Plan make_plan(const PlanOptions& options, const std::function<void(const std::string& spec)>& measuring);

// A page with a picture: how long a step takes on links of 10 Mb/s to 100 Gb/s. No network and no script is needed to look at it.
std::string plan_page(const Plan& plan, const PlanOptions& options);

// "4 workers", or "4 hosts of 8 workers".
std::string workers_text(const PlanOptions& options);
// For a table of workers that share hosts, in which nearly all goes on two levels.
std::string short_name(const PlanRow& row, const PlanOptions& options);
// At most eight characters: with powers of ten only where a million is reached.
std::string number_text(double number);
std::string milliseconds(double seconds);
std::string pays_text(const PlanRow& row);
// The plan in a sentence or two.
std::string verdict(const Plan& plan);

}  // namespace thinwire::tool
