#include "tool/bucket_costs.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>

#include "communicators/transfers.h"
#include "thinwire/communicator.h"
#include "thinwire/reducer.h"

namespace thinwire::tool {
namespace {

constexpr int kSteps = 6;  // of which the first does not count

class Workers {
 public:
  Workers(const Buckets& buckets, const BucketTrial& trial) : buckets_(buckets), noise_(gradient_like(buckets.layout.elements())) {
    for (int rank = 0; rank < trial.workers; ++rank) hosts_.push_back(rank / trial.per_host);
    for (int rank = 0; rank < trial.workers; ++rank)
      reducers_.push_back(std::make_unique<Reducer>(
          buckets.layout, ReducerOptions{.compressor = trial.compressor,
                                         .small_uncompressed = true,  // as in thinwire.torch
                                         .rank = rank,
                                         .world_size = trial.workers,
                                         .threads = trial.threads,
                                         .hosts = hosts_,
                                         .link = trial.link,
                                         .measure_every = rank == 0 ? std::numeric_limits<int>::max() : 0}));  // the first step alone
    figures_.resize(buckets.ends.size());
  }

  BucketCosts run() {
    auto ends = make_local_communicators(static_cast<int>(reducers_.size()), std::chrono::minutes(5), hosts_);
    {
      std::vector<std::jthread> threads;
      for (std::size_t rank = 0; rank < reducers_.size(); ++rank)
        threads.emplace_back([this, rank, &end = *ends[rank]] { work(rank, end); });
    }
    if (failure_) std::rethrow_exception(failure_);
    BucketCosts costs;
    for (const Figures& figures : figures_)
      costs.buckets.push_back({.encode_seconds = median(figures.encode),
                               .between_seconds = median(figures.between),
                               .decode_seconds = median(figures.decode),
                               .rounds = figures.rounds,
                               .hops = figures.hops,
                               .bytes = figures.bytes / (kSteps - 1)});
    const Counters all = reducers_[0]->counters();
    if (all.measured_energy > 0) costs.nmse_worker = all.error_energy / all.measured_energy;
    return costs;
  }

 private:
  // Of a bucket, by worker 0.
  struct Figures {
    std::vector<double> encode, between, decode;
    double bytes = 0;
    int rounds = 0, hops = 0;  // at most
  };

  // Of a bucket, once.
  struct Reduced {
    std::vector<double> seconds = {0};  // before each of its rounds, and behind them. What a host's workers do for each other belongs to what it is done for
    int hops = 0;
  };

  // The first failure is the cause; those of the others follow from it.
  void work(std::size_t rank, Communicator& communicator) {
    try {
      std::vector<float> gradient(noise_.size());
      for (int step = 0; step < kSteps; ++step) reduce_all(rank, gradient, communicator, step > 0);
    } catch (...) {
      const std::lock_guard lock(failing_);
      if (!failure_) failure_ = std::current_exception();
      communicator.abandon();
    }
  }

  void reduce_all(std::size_t rank, std::vector<float>& gradient, Communicator& communicator, bool counts) {
    Reducer& reducer = *reducers_[rank];
    {
      const std::lock_guard turn(turn_);
      const std::size_t first = rank * noise_.size() / reducers_.size();  // the same noise, elsewhere
      std::ranges::rotate_copy(noise_, noise_.begin() + static_cast<std::ptrdiff_t>(first), gradient.begin());
    }
    reducer.begin_step();
    for (std::size_t bucket = 0; bucket < buckets_.ends.size(); ++bucket) {
      const Counters before = reducer.counters();
      const Reduced reduced = reduce(bucket, reducer, gradient, communicator);
      if (rank == 0 && counts) add(figures_[bucket], reduced, before, reducer.counters());
    }
    const std::lock_guard turn(turn_);
    reducer.end_step();
  }

  Reduced reduce(std::size_t bucket, Reducer& reducer, std::span<float> gradient, Communicator& communicator) {
    const Layout& layout = buckets_.layout;
    std::vector<ParameterGradient> parameters;
    for (std::uint32_t p = bucket == 0 ? 0 : buckets_.ends[bucket - 1]; p < buckets_.ends[bucket]; ++p)
      parameters.push_back(
          {p, ElementType::kFloat32, std::as_writable_bytes(gradient.subspan(layout.offset(p), layout.parameters()[p].elements()))});
    Reduction reduction = reducer.reduce(parameters);
    Reduced reduced;
    const auto next = [&] {
      const std::lock_guard turn(turn_);
      const auto begin = std::chrono::steady_clock::now();
      const Collective* const collective = reduction.next();
      reduced.seconds.back() += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (collective && collective->group != Group::kWithinHost) {
        reduced.seconds.push_back(0);
        reduced.hops += hops_of(*collective, collective->group == Group::kAll ? static_cast<int>(hosts_.size()) : hosts_.back() + 1);
      }
      return collective;
    };
    while (const Collective* collective = next()) communicator.perform(*collective);
    return reduced;
  }

  static void add(Figures& figures, const Reduced& reduced, const Counters& before, const Counters& after) {
    const std::vector<double>& computed = reduced.seconds;
    figures.encode.push_back(computed.size() > 1 ? computed.front() : 0);
    figures.decode.push_back(computed.back());
    figures.between.push_back(std::max(0.0, std::accumulate(computed.begin(), computed.end(), -figures.encode.back() - figures.decode.back())));
    figures.bytes += after.traffic_bytes - before.traffic_bytes;
    figures.rounds = std::max(figures.rounds, static_cast<int>(after.rounds - before.rounds));
    figures.hops = std::max(figures.hops, reduced.hops);
  }

  const Buckets& buckets_;
  std::vector<float> noise_;
  std::vector<int> hosts_;
  std::vector<std::unique_ptr<Reducer>> reducers_;
  std::vector<Figures> figures_;
  std::mutex turn_;  // to compute
  std::mutex failing_;
  std::exception_ptr failure_;
};

}  // namespace

BucketCosts measure_buckets(const Buckets& buckets, const BucketTrial& trial) { return Workers(buckets, trial).run(); }

}  // namespace thinwire::tool
