#include "tool/planning.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <thread>

#include "thinwire/reducer.h"
#include "thinwire/registry.h"
#include "tool/bucket_costs.h"
#include "tool/sending_cost.h"
#include "tool/table.h"

namespace thinwire::tool {
namespace {

// Workers of this process, and hosts, that are tried in any case; and as many workers, of which each is a thread, of so many elements in all, and so
// much memory: of each worker's elements for a gradient, a residual and what is between, and a byte for everybody's code; where others are tried at once, they
// have a part of it.
constexpr int kFewTried = 8, kFewHosts = 4, kMostTried = 64;
constexpr double kMostElements = kFewTried * double{kMostSampled}, kMostBytes = 0x1p31, kOwnBytes = 12;

// With as many others that do the same at once as share the machine: cores share caches, memory, and what two threads of one core have in common.
BucketCosts measure_among(int others, const Buckets& buckets, const BucketTrial& trial) {
  std::vector<std::jthread> beside;
  for (int i = 0; i < others; ++i)
    beside.emplace_back([&] {
      try {
        measure_buckets(buckets, trial);
      } catch (const std::exception&) {  // which this thread meets as well
      }
    });
  return measure_buckets(buckets, trial);
}

// all: elements of the whole layout.
PlanRow measure_row(const std::string& spec, const Sample& sample, std::uint64_t all, const PlanOptions& options) {
  PlanRow row;
  row.spec = spec;
  const bool on_two_levels = row.on_two_levels();
  row.senders = on_two_levels ? options.per_host : 1;
  const int parties = options.parties(on_two_levels);
  const Link share{options.link.bytes_per_second / row.senders, options.link.round_seconds};
  const std::vector<int> all_tried = options.tried(on_two_levels, sample.elements());
  std::vector<BucketCosts> measured;
  for (const int tried : all_tried) {
    const BucketTrial trial{.compressor = row.compressor(),
                            .workers = tried * row.senders,
                            .per_host = row.senders,
                            .threads = options.threads,
                            // Two hosts, by which more are told, choose without a link: to them scattering saves nothing.
                            .link = tried == parties ? share : choosing_alike(share, tried, parties)};
    measured.push_back(measure_among(options.beside(), sample.buckets, trial));
  }
  BucketCosts& costs = measured.back();
  const std::vector<std::uint64_t> elements = bucket_elements(sample.buckets);
  if (measured.size() > 1)
    for (std::size_t i = 0; i < costs.buckets.size(); ++i) {
      const auto chunks = [&](int among) {
        const std::uint64_t of_all = static_cast<std::uint64_t>(row.senders) * chunk_elements(row.compressor(), among * row.senders, all);
        return (elements[i] + of_all - 1) / of_all;
      };
      const int few = all_tried.front(), many = all_tried.back();
      costs.buckets[i] = extrapolate({few, measured.front().buckets[i], chunks(few)}, {many, costs.buckets[i], chunks(many)}, parties, chunks(parties));
    }
  for (BucketCost& bucket : costs.buckets) {
    if (options.has_whole_rounds) bucket.hops = 0;
    if (!on_two_levels) bucket.hops = (bucket.hops + options.per_host - 1) / options.per_host;  // that ring enters each host once
  }
  row.buckets = std::move(costs.buckets);
  row.error = costs.nmse_worker;
  return row;
}

// The plain sum, and every one of `specs` once, which may be the plain sum on two levels.
std::vector<std::string> specs_of(const PlanOptions& options) {
  const bool on_two_levels = options.per_host > 1;
  std::vector<std::string> specs = {kPlainSpec};
  for (const std::string& given : options.specs) {
    const std::string spec = options.named(given);
    const bool is_plain = !on_two_levels && canonical_spec(given) == canonical_spec(kPlainSpec);
    if (!is_plain && std::ranges::find(specs, spec) == specs.end()) specs.push_back(spec);
  }
  return specs;
}

StepCost step_of(const PlanOptions& options, double sending) {
  return {.compute_seconds = options.compute_seconds,
          .hidden = options.hidden,
          .sending_seconds = options.crowding(1) * sending / kWithHeaders,
          .lanes = options.lanes,
          .link = options.link};
}

const char* limit_text(Limit limit) {
  switch (limit) {
    case Limit::kComputation:
      return "Its step is hardly longer than the computation.";
    case Limit::kCodec:
      return "What limits it is the codec: more --threads, or a processor that is faster than this one, would help most.";
    case Limit::kSending:
      return "What limits it is what sending takes of the processor: fewer bits would help most.";
    case Limit::kRounds:
      return "What limits it is the latency of rounds: a shorter one, or larger buckets, would help most.";
    default:
      return "What limits it is the link: fewer bits would help most.";
  }
}

}  // namespace

ModelledStep Plan::modelled(const PlanRow& row) const {
  ModelledStep modelled{step, row.buckets};
  modelled.cost.senders = row.senders;
  for (BucketCost& bucket : modelled.buckets) {
    bucket.encode_seconds *= codec_crowding;
    bucket.between_seconds *= codec_crowding;
    bucket.decode_seconds *= codec_crowding;
    bucket.bytes *= kWithHeaders;
  }
  return modelled;
}

std::string PlanOptions::named(const std::string& compressor) const {
  std::string name = compressor;
  if (per_host > 1) name.insert(0, kOnTwoLevels);
  return name;
}

std::vector<int> PlanOptions::tried(bool on_two_levels, std::uint64_t sampled) const {
  const int all = parties(on_two_levels), of_each = on_two_levels ? per_host : 1;
  const auto can_be_tried = [&](int count) {
    const double all_elements = static_cast<double>(count) * of_each * static_cast<double>(sampled);
    return count * of_each <= kMostTried && all_elements <= kMostElements && all_elements * (kOwnBytes + count) * (1 + beside()) <= kMostBytes;
  };
  int most = on_two_levels ? kFewHosts : kFewTried;
  while (most < all && can_be_tried(most + 1)) ++most;
  return all <= most ? std::vector{all} : std::vector{most / 2, most};
}

double PlanRow::bytes() const {
  double sum = 0;
  for (const BucketCost& bucket : buckets) sum += bucket.bytes;
  return sum;
}

int PlanRow::rounds() const {
  int sum = 0;
  for (const BucketCost& bucket : buckets) sum += bucket.rounds;
  return sum;
}

Plan make_plan(const PlanOptions& options, const std::function<void(const std::string& spec)>& measuring) {
  Plan plan;
  plan.sending_seconds = options.sending_seconds ? *options.sending_seconds : measure_sending();
  plan.step = step_of(options, plan.sending_seconds);
  plan.codec_crowding = options.codecs_count ? options.crowding(options.threads) : 0;
  const BucketSizes sizes = bucket_sizes(options.bucket_mb);
  const Layout layout = options.layout ? *options.layout : even_layout(options.elements, sizes);
  plan.elements = layout.elements();
  const std::vector<std::string> specs = specs_of(options);
  const Buckets buckets = ddp_buckets(layout, sizes);
  plan.bucket_elements = bucket_elements(buckets);
  const std::vector<double> ready = ready_seconds(plan.bucket_elements, plan.step.compute_seconds, options.forward_share);
  const Sample sample = sample_of(buckets);
  plan.measured_elements = sample.elements();

  for (const std::string& spec : specs) {
    measuring(spec);
    PlanRow row = measure_row(spec, sample, plan.elements, options);
    row.buckets = spread(sample, row.buckets, plan.bucket_elements);
    for (std::size_t i = 0; i < ready.size(); ++i) row.buckets[i].ready_seconds = ready[i];
    row.time = plan.modelled(row).time();
    row.limit = limit_of(plan.modelled(row));
    plan.rows.push_back(std::move(row));
  }
  const PlanRow& plain = plan.rows.front();
  for (PlanRow& row : plan.rows) {
    row.speedup = plain.time.seconds / row.time.seconds;
    row.pays_below = pays_below(plan.modelled(row), plan.modelled(plain));
  }
  std::ranges::stable_sort(plan.rows, {}, [](const PlanRow& row) { return row.time.seconds; });
  return plan;
}

std::string workers_text(const PlanOptions& options) {
  const std::string each = std::to_string(options.per_host > 1 ? options.per_host : options.workers) + " workers";
  return options.per_host > 1 ? std::to_string(options.parties(true)) + " hosts of " + each : each;
}

std::string short_name(const PlanRow& row, const PlanOptions& options) {
  if (row.on_two_levels()) return row.compressor();
  return row.spec == kPlainSpec && options.per_host > 1 ? row.spec + ", one ring of all" : row.spec;
}

std::string number_text(double number) {
  return number < 999.5 || number >= 999'999.5 ? short_number(number) : with_commas(static_cast<std::uint64_t>(std::llround(number)));
}

std::string milliseconds(double seconds) { return number_text(1e3 * seconds); }

std::string pays_text(const PlanRow& row) {
  if (row.spec == kPlainSpec) return "";
  if (row.pays_below == 0) return "never";
  return std::isinf(row.pays_below) ? "always" : short_rate(row.pays_below);
}

std::string verdict(const Plan& plan) {
  const PlanRow& best = plan.rows.front();
  if (best.spec != kPlainSpec)
    return best.spec + " is the fastest here: " + number_text(best.speedup) + " times as fast as " + kPlainSpec + ", and pays on " +
           (std::isinf(best.pays_below) ? "any link. " : "links below " + short_rate(best.pays_below) + ". ") + limit_text(best.limit);
  const PlanRow& next = *std::ranges::max_element(plan.rows, {}, &PlanRow::pays_below);
  std::string text = "Nothing here is faster than none on this link.";
  if (next.pays_below > 0) text += " The first to pay, on links below " + short_rate(next.pays_below) + ", is " + next.spec + ".";
  return text;
}

}  // namespace thinwire::tool
