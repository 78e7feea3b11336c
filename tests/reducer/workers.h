// Workers as threads, each with a reducer of its own: the ground of the reducer's tests.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/background.h"
#include "thinwire/thinwire.h"

namespace thinwire::testing {

using Gradients = std::vector<std::vector<float>>;  // [worker][element]

inline std::vector<ParameterGradient> parameters_of(const Layout& layout, std::span<float> gradient,
                                                    std::size_t first = 0, std::size_t last = static_cast<std::size_t>(-1)) {
  std::vector<ParameterGradient> parameters;
  for (std::size_t i = first; i < std::min(last, layout.parameters().size()); ++i)
    parameters.push_back({static_cast<std::uint32_t>(i), ElementType::kFloat32,
                          std::as_writable_bytes(gradient.subspan(layout.offset(i), layout.parameters()[i].elements()))});
  return parameters;
}

// Calls work(index) for every index below `count` in a thread of its own, and rethrows what the least of those that failed threw. Threads
// stay for who calls next: to start one takes longer than many a step, and under a sanitizer longer than most.
inline void on_threads(int count, const std::function<void(int)>& work) {
  static std::mutex mutex;
  static std::vector<std::unique_ptr<Background>> idle;
  std::vector<std::unique_ptr<Background>> threads(static_cast<std::size_t>(count));
  std::vector<std::shared_future<void>> ends;
  ends.reserve(threads.size());  // so that this thread allocates nothing once the last of the others may count
  for (int index = 0; index < count; ++index) {
    auto& thread = threads[static_cast<std::size_t>(index)];
    {
      const std::lock_guard lock(mutex);
      if (idle.empty()) idle.push_back(std::make_unique<Background>());
      thread = std::move(idle.back());
      idle.pop_back();
    }
    ends.push_back(thread->submit([&work, index] { work(index); }));
  }
  for (const auto& end : ends) end.wait();
  {
    const std::lock_guard lock(mutex);
    for (auto& thread : threads) idle.push_back(std::move(thread));
  }
  for (const auto& end : ends) end.get();
}

// Runs `work(rank, communicator)` for every worker in a thread of its own; rethrows the lowest rank's exception.
inline void in_parallel(int workers, const std::function<void(int, Communicator&)>& work, std::span<const int> hosts = {}) {
  const auto communicators = make_local_communicators(workers, std::chrono::seconds(60), hosts);
  on_threads(workers, [&](int rank) {
    Communicator& communicator = *communicators[static_cast<std::size_t>(rank)];
    try {
      work(rank, communicator);
    } catch (...) {
      communicator.abandon();
      throw;
    }
  });
}

class Workers {
 public:
  Workers(Layout layout, int count, ReducerOptions options) : layout_(std::move(layout)) {
    options.world_size = count;
    for (options.rank = 0; options.rank < count; ++options.rank)
      reducers_.push_back(std::make_unique<Reducer>(layout_, options));
  }

  int count() const { return static_cast<int>(reducers_.size()); }
  const Layout& layout() const { return layout_; }
  Reducer& reducer(int rank) { return *reducers_[static_cast<std::size_t>(rank)]; }

  // One step: the means that every worker ends with, in place. `buckets`: the first parameter of each reduction.
  void step(Gradients& gradients, const std::vector<std::size_t>& buckets = {0}, double loss_scale = 1) {
    in_parallel(count(), [&](int rank, Communicator& communicator) {
      for (std::size_t b = 0; b < buckets.size(); ++b) {
        const std::size_t last = b + 1 < buckets.size() ? buckets[b + 1] : layout_.parameters().size();
        const auto parameters = parameters_of(layout_, gradients[static_cast<std::size_t>(rank)], buckets[b], last);
        Reduction reduction = reducer(rank).reduce(parameters, 0, loss_scale);
        run(reduction, communicator);
      }
    });
  }

  // A worker's residual over all parameters; zeros where there is none.
  std::vector<float> residual(int rank) {
    std::vector<float> all;
    const auto states = reducer(rank).state();
    for (std::size_t i = 0; i < states.size(); ++i) {
      std::vector<float> part = states[i].residual;
      part.resize(layout_.parameters()[i].elements());
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

 private:
  Layout layout_;
  std::vector<std::unique_ptr<Reducer>> reducers_;
};

}  // namespace thinwire::testing
