#include "tool/planning.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <thread>

#include "thinwire/errors.h"
#include "thinwire/registry.h"
#include "tool/bucket_costs.h"
#include "tool/layout_json.h"
#include "tool/sending_cost.h"
#include "tool/table.h"

namespace thinwire::tool {
namespace {

constexpr int kMostTried = 8;   // workers of this process
constexpr int kFewerTried = 4;  // where there are to be more than that
constexpr double kWithHeaders = 1514.0 / 1448;  // bytes on the link for each of a message: full TCP segments in Ethernet's frames

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

PlanRow measure_row(const std::string& spec, const Sample& sample, const Link& link, const PlanOptions& options) {
  std::vector<BucketCosts> measured;
  for (const int tried : options.tried()) {
    const Link alike = tried == options.workers ? link : choosing_alike(link, tried, options.workers);
    measured.push_back(measure_among(options.beside(), sample.buckets, {.compressor = spec, .workers = tried, .threads = options.threads, .link = alike}));
  }
  BucketCosts& costs = measured.back();
  if (measured.size() > 1)
    for (std::size_t i = 0; i < costs.buckets.size(); ++i)
      costs.buckets[i] = extrapolate({kFewerTried, measured.front().buckets[i]}, {kMostTried, costs.buckets[i]}, options.workers);
  PlanRow row;
  row.spec = spec;
  row.buckets = std::move(costs.buckets);
  row.error = costs.nmse_worker;
  return row;
}

// The plain sum, and every one of `specs` once.
std::vector<std::string> specs_of(const PlanOptions& options) {
  std::vector<std::string> specs = {kPlainSpec};
  for (const std::string& spec : options.specs)
    if (canonical_spec(spec) != canonical_spec(kPlainSpec) && std::ranges::find(specs, spec) == specs.end()) specs.push_back(spec);
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

std::vector<BucketCost> Plan::modelled(const PlanRow& row) const {
  std::vector<BucketCost> buckets = row.buckets;
  for (BucketCost& bucket : buckets) {
    bucket.encode_seconds *= codec_crowding;
    bucket.decode_seconds *= codec_crowding;
    bucket.bytes *= kWithHeaders;
  }
  return buckets;
}

std::vector<int> PlanOptions::tried() const { return workers <= kMostTried ? std::vector{workers} : std::vector{kFewerTried, kMostTried}; }

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
  plan.codec_crowding = options.crowding(options.threads);
  const BucketSizes sizes = bucket_sizes(options.bucket_mb);
  const Layout layout = options.layout ? read_layout(*options.layout, std::nullopt) : even_layout(options.elements, sizes);
  if (layout.elements() == 0) throw Error(*options.layout + ": has no elements to average");
  plan.elements = layout.elements();
  const std::vector<std::string> specs = specs_of(options);
  const Buckets buckets = ddp_buckets(layout, sizes);
  plan.bucket_elements = bucket_elements(buckets);
  const std::vector<double> ready = ready_seconds(plan.bucket_elements, plan.step.compute_seconds, options.forward_share);
  const Sample sample = sample_of(buckets);
  plan.measured_elements = sample.elements();

  for (const std::string& spec : specs) {
    measuring(spec);
    PlanRow row = measure_row(spec, sample, plan.step.link, options);
    row.buckets = spread(sample, row.buckets, plan.bucket_elements);
    for (std::size_t i = 0; i < ready.size(); ++i) row.buckets[i].ready_seconds = ready[i];
    row.time = predict_step(plan.step, plan.modelled(row));
    row.limit = limit_of(plan.step, plan.modelled(row));
    plan.rows.push_back(std::move(row));
  }
  const PlanRow& plain = plan.rows.front();
  for (PlanRow& row : plan.rows) {
    row.speedup = plain.time.seconds / row.time.seconds;
    row.pays_below = pays_below(plan.step, plan.modelled(row), plan.modelled(plain));
  }
  std::ranges::stable_sort(plan.rows, {}, [](const PlanRow& row) { return row.time.seconds; });
  return plan;
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
