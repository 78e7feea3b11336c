// Four workers, as threads, average their gradients with CASQ: how small does it travel, how good is the mean?
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "thinwire/thinwire.h"

int main() {
  constexpr int kWorkers = 4;
  const thinwire::Layout layout({{"conv.weight", {64, 32, 3, 3}}, {"fc.weight", {1000, 256}}});

  std::vector<std::vector<float>> gradients(kWorkers, std::vector<float>(layout.elements()));
  std::vector<double> exact(layout.elements());
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (auto& gradient : gradients)
    for (std::size_t i = 0; i < gradient.size(); ++i) exact[i] += (gradient[i] = normal(random)) / kWorkers;

  const auto ends = thinwire::make_local_communicators(kWorkers);
  thinwire::Counters counters;
  const auto work = [&](int rank) {
    thinwire::Reducer reducer(layout, {.compressor = "casq:bits=2", .rank = rank, .world_size = kWorkers});
    std::vector<thinwire::ParameterGradient> parameters;
    for (std::uint32_t p = 0; p < layout.parameters().size(); ++p) {
      const auto values = std::span(gradients[rank]).subspan(layout.offset(p), layout.parameters()[p].elements());
      parameters.push_back({p, thinwire::ElementType::kFloat32, std::as_writable_bytes(values)});
    }
    thinwire::Reduction reduction = reducer.reduce(parameters);
    run(reduction, *ends[rank]);  // the gradients now hold the mean
    if (rank == 0) counters = reducer.counters();
  };
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kWorkers; ++rank) threads.emplace_back(work, rank);
  threads.clear();  // joins them

  double error = 0, energy = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += (gradients[0][i] - exact[i]) * (gradients[0][i] - exact[i]);
    energy += exact[i] * exact[i];
  }
  const double bits = 8.0 * static_cast<double>(counters.payload_bytes) / static_cast<double>(layout.elements());
  std::printf("%.2f bits an element instead of 32; error of the mean: %.3f of its energy\n", bits, error / energy);
}
