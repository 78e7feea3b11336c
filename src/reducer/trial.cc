#include "thinwire/trial.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "kernels/statistics.h"
#include "thinwire/communicator.h"
#include "thinwire/errors.h"
#include "thinwire/registry.h"

namespace thinwire {
namespace {

std::optional<double> ratio(double part, double whole) {
  if (!(whole > 0) || !std::isfinite(part) || !std::isfinite(whole)) return std::nullopt;
  return part / whole;
}

// What one worker did in one step.
struct WorkerStep {
  Counters counters;
  double seconds = 0;
};

Counters difference(const Counters& after, const Counters& before) {
  Counters result = after;
  result.rounds -= before.rounds;
  result.setup_bytes -= before.setup_bytes;
  result.payload_bytes -= before.payload_bytes;
  result.second_bytes -= before.second_bytes;
  result.traffic_bytes -= before.traffic_bytes;
  result.measured_energy -= before.measured_energy;
  result.error_energy -= before.error_energy;
  return result;
}

struct MeanError {
  double error = 0;
  double exact = 0;
};

class Trial {
 public:
  Trial(const Layout& layout, std::span<const float> gradients, int workers, std::uint64_t steps, const TrialOptions& options)
      : layout_(layout), gradients_(gradients), workers_(workers), steps_(steps), options_(options) {
    if (workers < 1) throw ArgumentError("workers is " + std::to_string(workers) + "; it must be at least 1");
    const std::uint64_t expected = steps * static_cast<std::uint64_t>(workers) * layout.elements();
    if (gradients.size() != expected)
      throw ArgumentError("there are " + std::to_string(gradients.size()) + " gradient values; " + std::to_string(steps) +
                          " steps of " + std::to_string(workers) + " workers with " + std::to_string(layout.elements()) +
                          " elements each make " + std::to_string(expected));
    for (int rank = 0; rank < workers; ++rank) reducers_.push_back(std::make_unique<Reducer>(layout, reducer_options(rank)));
    records_.assign(steps * static_cast<std::uint64_t>(workers), {});
    report_.compressor = canonical_spec(options.compressor);
    report_.workers = workers;
    report_.elements = layout.elements();
    report_.steps = steps;
    report_.mean.resize(steps * layout.elements());
  }

  TrialReport run() {
    run_workers();
    std::vector<MeanError> errors;
    for (std::uint64_t step = 0; step < steps_; ++step) errors.push_back(mean_error(step));
    for (std::uint64_t step = 0; step < steps_; ++step) report_.per_step.push_back(figures(step, step + 1, errors));
    if (steps_ > 0) report_.total = figures(0, steps_, errors);
    return std::move(report_);
  }

 private:
  ReducerOptions reducer_options(int rank) const {
    ReducerOptions options;
    options.compressor = options_.compressor;
    options.rules = options_.rules;
    options.seed = options_.seed;
    options.rank = rank;
    options.world_size = workers_;
    options.threads = options_.threads;
    options.measure_every = 1;
    return options;
  }

  std::span<const float> input(std::uint64_t step, int rank) const {
    const std::uint64_t index = step * static_cast<std::uint64_t>(workers_) + static_cast<std::uint64_t>(rank);
    return gradients_.subspan(index * layout_.elements(), layout_.elements());
  }

  void run_workers() {
    auto communicators = make_local_communicators(workers_);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < workers_; ++rank)
      threads.emplace_back([this, rank, &communicators] { run_worker(rank, *communicators[static_cast<std::size_t>(rank)]); });
    for (std::thread& thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
  }

  // The first failure is the cause; those of the others only follow from it.
  void run_worker(int rank, Communicator& communicator) {
    try {
      std::vector<float> gradient(layout_.elements());
      for (std::uint64_t step = 0; step < steps_; ++step) run_step(rank, step, gradient, communicator);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      communicator.abandon();
    }
  }

  void run_step(int rank, std::uint64_t step, std::vector<float>& gradient, Communicator& communicator) {
    Reducer& reducer = *reducers_[static_cast<std::size_t>(rank)];
    std::ranges::copy(input(step, rank), gradient.begin());
    std::vector<ParameterGradient> parameters;
    for (std::size_t i = 0; i < layout_.parameters().size(); ++i)
      parameters.push_back({static_cast<std::uint32_t>(i), ElementType::kFloat32,
                            std::as_writable_bytes(std::span(gradient).subspan(layout_.offset(i), layout_.parameters()[i].elements()))});
    const Counters before = reducer.counters();
    const auto start = std::chrono::steady_clock::now();
    {
      Reduction reduction = reducer.reduce(parameters);
      thinwire::run(reduction, communicator);
    }
    WorkerStep& record = records_[step * static_cast<std::uint64_t>(workers_) + static_cast<std::uint64_t>(rank)];
    record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    record.counters = difference(reducer.counters(), before);
    compare_means(rank, step, gradient, communicator);
  }

  // Worker 0's mean is the report's; the others' must have the same bits.
  void compare_means(int rank, std::uint64_t step, std::vector<float>& gradient, Communicator& communicator) {
    const auto mean = std::span(report_.mean).subspan(step * layout_.elements(), layout_.elements());
    if (rank == 0) std::ranges::copy(gradient, mean.begin());
    communicator.perform({.kind = CollectiveKind::kBroadcast, .data = {}, .result = {}});
    if (!gradient.empty() && std::memcmp(gradient.data(), mean.data(), mean.size_bytes()) != 0)
      throw Error("worker " + std::to_string(rank) + " ended step " + std::to_string(step) +
                  " with another mean than worker 0; this is a fault of the compressor");
  }

  MeanError mean_error(std::uint64_t step) const {
    MeanError result;
    for (std::uint64_t i = 0; i < layout_.elements(); ++i) {
      double exact = 0;
      for (int rank = 0; rank < workers_; ++rank) exact += static_cast<double>(input(step, rank)[i]);
      exact /= workers_;
      const double error = static_cast<double>(report_.mean[step * layout_.elements() + i]) - exact;
      result.error += error * error;
      result.exact += exact * exact;
    }
    return result;
  }

  TrialFigures figures(std::uint64_t first, std::uint64_t last, std::span<const MeanError> errors) const {
    const double records = static_cast<double>(last - first) * workers_;
    TrialFigures result;
    std::vector<double> energy(static_cast<std::size_t>(workers_)), error(energy.size());
    MeanError mean;
    for (std::uint64_t step = first; step < last; ++step) {
      mean.error += errors[step].error;
      mean.exact += errors[step].exact;
      for (std::size_t rank = 0; rank < energy.size(); ++rank) {
        const WorkerStep& record = records_[step * energy.size() + rank];
        result.rounds += static_cast<double>(record.counters.rounds) / records;
        result.setup_bytes += static_cast<double>(record.counters.setup_bytes) / records;
        result.payload_bytes += static_cast<double>(record.counters.payload_bytes) / records;
        result.second_bytes += static_cast<double>(record.counters.second_bytes) / records;
        result.traffic_bytes += record.counters.traffic_bytes / records;
        result.seconds += record.seconds / records;
        energy[rank] += record.counters.measured_energy;
        error[rank] += record.counters.error_energy;
      }
    }
    result.bits_per_element = ratio(8 * result.payload_bytes, static_cast<double>(layout_.elements()));
    result.nmse_mean = ratio(mean.error, mean.exact);
    result.nmse_worker = mean_ratio(error, energy);
    return result;
  }

  // Over the workers that had anything to send.
  static std::optional<double> mean_ratio(std::span<const double> error, std::span<const double> energy) {
    double sum = 0;
    int counted = 0;
    for (std::size_t rank = 0; rank < error.size(); ++rank) {
      const std::optional<double> of_worker = ratio(error[rank], energy[rank]);
      if (!of_worker) continue;
      sum += *of_worker;
      ++counted;
    }
    if (counted == 0) return std::nullopt;
    return sum / counted;
  }

  const Layout& layout_;
  std::span<const float> gradients_;
  int workers_;
  std::uint64_t steps_;
  const TrialOptions& options_;
  std::vector<std::unique_ptr<Reducer>> reducers_;
  std::vector<WorkerStep> records_;  // [step][worker]
  TrialReport report_;
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace

TrialReport run_trial(const Layout& layout, std::span<const float> gradients, int workers, std::uint64_t steps,
                      const TrialOptions& options) {
  return Trial(layout, gradients, workers, steps, options).run();
}

}  // namespace thinwire
