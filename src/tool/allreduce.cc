#include "tool/allreduce.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <fstream>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>

#include "core/aligned.h"
#include "thinwire/errors.h"
#include "tool/processor_time.h"
#include "tool/samples.h"

namespace thinwire::tool {
namespace {

using Lanes = std::vector<std::unique_ptr<Communicator>>;

constexpr int kTrials = 2;     // of each division, of which the best counts
constexpr std::array<std::uint64_t, 3> kDivisors = {1, 4, 10};  // of kBucketElements, roughly: what a trial compares

// Everybody's largest, or sum.
double agree(CollectiveKind kind, double mine, Communicator& communicator) {
  std::array value = {static_cast<float>(mine)};
  communicator.perform({.kind = kind, .type = ElementType::kFloat32, .data = std::as_writable_bytes(std::span(value)), .result = {}});
  return static_cast<double>(value[0]);
}

double mean_over_workers(double mine, Communicator& communicator) {
  return agree(CollectiveKind::kSum, mine, communicator) / communicator.world_size();
}

// A compressor, and how the gradient is cut for it.
struct Division {
  std::unique_ptr<Reducer> reducer;
  std::vector<std::uint32_t> ends;  // of each bucket, the parameter behind its last
  std::size_t lanes = 1;
};

// Reduces a gradient bucket by bucket, each in its lane; lanes are threads, or served by this one where messages do not move alone.
class Pass {
 public:
  Pass(Division& division, std::span<float> gradient, Lanes& lanes)
      : reducer_(*division.reducer), ends_(division.ends), gradient_(gradient), lanes_(std::span(lanes).first(division.lanes)) {}

  void run() {
    if (!lanes_[0]->moves_alone()) {
      std::vector<std::size_t> buckets(lanes_.size());
      std::iota(buckets.begin(), buckets.end(), 0);
      return run_lanes(lanes_, [&](std::size_t lane) -> std::optional<Reduction> {
        const std::size_t bucket = std::exchange(buckets[lane], buckets[lane] + lanes_.size());
        return bucket < ends_.size() ? std::optional(begin(bucket, lane)) : std::nullopt;
      });
    }
    {
      std::vector<std::jthread> threads;
      for (std::size_t lane = 1; lane < lanes_.size(); ++lane) threads.emplace_back([this, lane] { serve(lane); });
      serve(0);
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  // The first failure is the cause; the other lanes' only follow from it.
  void serve(std::size_t lane) {
    try {
      for (std::size_t bucket = lane; bucket < ends_.size(); bucket += lanes_.size()) reduce(bucket, lane);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      for (auto& each : lanes_) each->abandon();
    }
  }

  void reduce(std::size_t bucket, std::size_t lane) {
    Reduction reduction = begin(bucket, lane);
    thinwire::run(reduction, *lanes_[lane]);
  }

  Reduction begin(std::size_t bucket, std::size_t lane) {
    const Layout& layout = reducer_.layout();
    std::vector<ParameterGradient> gradients;
    for (std::uint32_t parameter = bucket > 0 ? ends_[bucket - 1] : 0; parameter < ends_[bucket]; ++parameter) {
      const auto values = gradient_.subspan(layout.offset(parameter), layout.parameters()[parameter].elements());
      gradients.push_back({parameter, ElementType::kFloat32, std::as_writable_bytes(values)});
    }
    return reducer_.reduce(gradients, static_cast<int>(lane));
  }

  Reducer& reducer_;
  std::span<const std::uint32_t> ends_;
  std::span<float> gradient_;
  std::span<std::unique_ptr<Communicator>> lanes_;
  std::mutex mutex_;
  std::exception_ptr failure_;
};

class Measurement {
 public:
  Measurement(Lanes& lanes, const AllreduceOptions& options, Trace* trace)
      : lanes_(lanes),
        options_(options),
        trace_(trace),
        plain_(division("none", kBucketElements, options.lanes.value_or(kPlainLanes))),
        gradient_(gradient_like(options.elements, lanes[0]->rank())),
        buffer_(gradient_.size()) {}

  AllreduceFigures run() {
    pass(plain_);  // touches memory, opens connections
    const AlignedFloats exact = buffer_;
    divide();
    Division compressed = division(options_.compressor, figures_.bucket_elements, figures_.lanes);
    figures_.link = measure_link(*compressed.reducer);
    figures_.first_seconds = pass(compressed);
    compare_means();
    figures_.nmse_mean = error_against(exact);
    for (int more = 1; more < options_.warm_up; ++more) pass(compressed);
    const Counters plain_before = plain_.reducer->counters(), before = compressed.reducer->counters();
    double on_wire = 0, plain_on_wire = 0;
    processor_seconds_ = 0;
    for (int repetition = 0; repetition < options_.repetitions; ++repetition) {
      const double first = wire_bytes();
      figures_.plain_seconds.push_back(pass(plain_));
      figures_.plain_processor_seconds += std::exchange(processor_seconds_, 0);
      const double second = wire_bytes();
      if (trace_) trace_->take();
      figures_.seconds.push_back(pass(compressed));
      figures_.processor_seconds += std::exchange(processor_seconds_, 0);
      plain_on_wire += second - first;
      on_wire += wire_bytes() - second;
    }
    count(plain_before, plain_.reducer->counters(), before, compressed.reducer->counters());
    if (options_.interface) {
      figures_.wire_bytes = mean_over_workers(on_wire / options_.repetitions, *lanes_[0]);
      figures_.plain_wire_bytes = mean_over_workers(plain_on_wire / options_.repetitions, *lanes_[0]);
    }
    return std::move(figures_);
  }

 private:
  // Fills in what options leave open: the divisions' lanes by what buckets cost, and the division by how long each takes.
  void divide() {
    std::vector<std::uint64_t> candidates;
    // As many whole chunks for each worker, as shards are filled up to the longest.
    const int workers = lanes_[0]->world_size();
    const std::uint64_t shared = chunk_elements(options_.compressor, workers, options_.elements) * static_cast<std::uint64_t>(workers);
    for (const std::uint64_t divisor : kDivisors) candidates.push_back((kBucketElements / divisor + shared - 1) / shared * shared);
    if (options_.bucket_elements) candidates = {*options_.bucket_elements};
    // Of divisions that come to the same, as of a short gradient, the first is enough.
    const auto same = [&](std::uint64_t a, std::uint64_t b) { return buckets(a).ends == buckets(b).ends; };
    candidates.erase(std::ranges::unique(candidates, same).begin(), candidates.end());

    std::vector<TriedDivision>& tried = figures_.tried;
    for (const std::uint64_t elements : candidates) tried.push_back({elements, buckets_of(elements), options_.lanes.value_or(1), 0});
    if (lanes_[0]->world_size() > 1 && (tried.size() > 1 || !options_.lanes)) try_divisions();
    const TriedDivision& best = *std::ranges::min_element(tried, {}, &TriedDivision::seconds);
    figures_.bucket_elements = best.bucket_elements;
    figures_.buckets = best.buckets;
    figures_.lanes = best.lanes;
    if (!figures_.cost) tried.clear();
  }

  int buckets_of(std::uint64_t bucket_elements) const { return static_cast<int>(buckets(bucket_elements).ends.size()); }

  void try_divisions() {
    std::vector<TriedDivision>& tried = figures_.tried;
    std::vector<Division> divisions;
    for (const TriedDivision& each : tried) {
      divisions.push_back(division(options_.compressor, each.bucket_elements, options_.lanes.value_or(kMostChosenLanes)));
      warm_up(divisions.back());
    }
    figures_.cost = measure_cost(divisions.front(), divisions.back());
    for (std::size_t i = 0; i < tried.size(); ++i) {
      if (!options_.lanes) tried[i].lanes = choose_lanes(*figures_.cost, tried[i].buckets, kMostChosenLanes);
      divisions[i].lanes = static_cast<std::size_t>(tried[i].lanes);
    }
    if (tried.size() == 1) return;  // nothing to compare
    for (TriedDivision& each : tried) each.seconds = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kTrials; ++round)
      for (std::size_t i = 0; i < tried.size(); ++i) tried[i].seconds = std::min(tried[i].seconds, pass(divisions[i]));
  }

  // Two divisions in one lane, in turns, as other work on the machine comes and goes: what they differ by is what buckets cost.
  ReductionCost measure_cost(Division& coarse_division, Division& fine_division) {
    Trial coarse, fine;
    for (int round = 0; round < kTrials; ++round) {
      coarse = better(coarse, attempt(coarse_division));
      fine = better(fine, attempt(fine_division));
    }
    const double coarse_buckets = static_cast<double>(coarse_division.ends.size());
    const double more = std::max(static_cast<double>(fine_division.ends.size()) - coarse_buckets, 1.0);
    const double bucket = std::max(fine.seconds - coarse.seconds, 0.0) / more;
    const double computing = std::clamp((fine.processor_seconds - coarse.processor_seconds) / more, 0.0, bucket);
    const double wire = coarse.seconds - coarse.codec_seconds - coarse_buckets * bucket;
    const auto slowest = [&](double mine) { return agree(CollectiveKind::kMax, mine, *lanes_[0]); };
    return {.codec_seconds = slowest(coarse.codec_seconds),
            .wire_seconds = slowest(std::max(wire, 0.0)),
            .bucket_codec_seconds = slowest(computing),
            .bucket_wait_seconds = slowest(bucket - computing)};
  }

  struct Trial {
    double seconds = std::numeric_limits<double>::infinity();
    double codec_seconds = 0;
    double processor_seconds = 0;
  };
  static Trial better(const Trial& a, const Trial& b) { return a.seconds < b.seconds ? a : b; }

  Trial attempt(Division& division) {
    division.lanes = 1;
    const Counters before = division.reducer->counters();
    processor_seconds_ = 0;
    const double seconds = pass(division);
    const Counters after = division.reducer->counters();
    return {seconds, after.encode_seconds - before.encode_seconds + after.decode_seconds - before.decode_seconds,
            processor_seconds_ / options_.workers_of_process};
  }

  void warm_up(Division& division) {
    measure_link(*division.reducer);
    for (int passes = 0; passes < options_.warm_up; ++passes) pass(division);
  }

  Link measure_link(Reducer& reducer) {
    Reduction probe = reducer.measure_link();
    thinwire::run(probe, *lanes_[0]);
    return reducer.link();
  }

  Buckets buckets(std::uint64_t bucket_elements) const {
    return fill_buckets(options_.layout ? *options_.layout : bucket_layout(options_.elements, bucket_elements), bucket_elements);
  }

  Division division(const std::string& compressor, std::uint64_t bucket_elements, int lanes) const {
    Buckets cut = buckets(bucket_elements);
    const ReducerOptions options = {.compressor = compressor,
                                    .seed = options_.seed,
                                    .rank = lanes_[0]->rank(),
                                    .world_size = lanes_[0]->world_size(),
                                    .lanes = lanes,
                                    .threads = options_.threads,
                                    .hosts = compressor == "none" ? std::vector<int>() : options_.hosts,
                                    .trace = trace_};
    return {std::make_unique<Reducer>(std::move(cut.layout), options), std::move(cut.ends), static_cast<std::size_t>(lanes)};
  }

  // Seconds from when all workers are there until the last is done.
  double pass(Division& division) {
    std::ranges::copy(gradient_, buffer_.begin());
    agree(CollectiveKind::kMax, 0, *lanes_[0]);
    const double processor_before = processor_seconds();
    const double start = lanes_[0]->seconds();
    Pass(division, buffer_, lanes_).run();
    const double seconds = lanes_[0]->seconds() - start;
    processor_seconds_ += processor_seconds() - processor_before;
    return agree(CollectiveKind::kMax, seconds, *lanes_[0]);
  }

  double wire_bytes() const {
    if (!options_.interface) return 0;
    const std::string path = "/sys/class/net/" + *options_.interface + "/statistics/tx_bytes";
    std::ifstream file(path);
    std::uint64_t bytes = 0;
    if (!(file >> bytes)) throw Error(path + " cannot be read; --interface takes a name that `ip link` lists");
    return static_cast<double>(bytes);
  }

  void compare_means() {
    const std::string_view bytes(reinterpret_cast<const char*>(buffer_.data()), buffer_.size() * sizeof(float));
    const std::string print = std::to_string(std::hash<std::string_view>()(bytes));
    const std::vector<std::string> prints = gather_texts(print, *lanes_[0]);
    for (std::size_t rank = 1; rank < prints.size(); ++rank)
      if (prints[rank] != prints[0])
        throw Error("worker " + std::to_string(rank) + " ended with another mean than worker 0; workers run different versions");
  }

  std::optional<double> error_against(const AlignedFloats& exact) const {
    double error = 0, energy = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double difference = static_cast<double>(buffer_[i]) - static_cast<double>(exact[i]);
      error += difference * difference;
      energy += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
    }
    if (!(energy > 0) || !std::isfinite(error / energy)) return std::nullopt;
    return error / energy;
  }

  void count(const Counters& plain_before, const Counters& plain, const Counters& before, const Counters& after) {
    const auto each = [&](double total) { return mean_over_workers(total / options_.repetitions, *lanes_[0]); };
    figures_.plain_traffic_bytes = each(plain.traffic_bytes - plain_before.traffic_bytes);
    figures_.traffic_bytes = each(after.traffic_bytes - before.traffic_bytes);
    figures_.within_host_bytes = each(after.within_host_bytes - before.within_host_bytes);
    figures_.processor_seconds = each(figures_.processor_seconds / options_.workers_of_process);
    figures_.plain_processor_seconds = each(figures_.plain_processor_seconds / options_.workers_of_process);
    figures_.codec_seconds = each(after.encode_seconds - before.encode_seconds + after.decode_seconds - before.decode_seconds);
  }

  Lanes& lanes_;
  const AllreduceOptions& options_;
  Trace* trace_;
  Division plain_;
  const std::vector<float> gradient_;
  AlignedFloats buffer_;  // as tensors' memory is
  double processor_seconds_ = 0;  // in the passes since it was last taken
  AllreduceFigures figures_;
};

}  // namespace

AllreduceFigures measure_allreduce(Lanes& lanes, const AllreduceOptions& options, Trace* trace) {
  return Measurement(lanes, options, trace).run();
}

std::vector<std::string> gather_texts(const std::string& mine, Communicator& communicator) {
  std::array longest = {static_cast<std::int32_t>(mine.size())};
  communicator.perform({.kind = CollectiveKind::kMax, .type = ElementType::kInt32,
                        .data = std::as_writable_bytes(std::span(longest)), .result = {}});
  std::string padded = mine, all;
  padded.resize(static_cast<std::size_t>(longest[0]));
  all.resize(padded.size() * static_cast<std::size_t>(communicator.world_size()));
  communicator.perform({.kind = CollectiveKind::kGather, .data = std::as_writable_bytes(std::span(padded)),
                        .result = std::as_writable_bytes(std::span(all))});
  std::vector<std::string> texts;
  for (std::size_t begin = 0; begin < all.size(); begin += padded.size())
    texts.emplace_back(all.substr(begin, padded.size()).c_str());  // up to the padding
  texts.resize(static_cast<std::size_t>(communicator.world_size()));
  return texts;
}

}  // namespace thinwire::tool
