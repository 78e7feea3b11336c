// MPI processes average their gradients with CASQ: mpirun -n 4 average_with_mpi
//
// thinwire needs no change in a program that uses MPI itself: it duplicates the communicator. Here it starts MPI, too.
#include <cstdio>
#include <exception>
#include <random>
#include <vector>

#include "thinwire/mpi.h"
#include "thinwire/thinwire.h"

int main() try {
  const thinwire::MpiEnvironment mpi;
  const auto group = thinwire::make_mpi_communicators({.timeout = std::chrono::seconds(30)});

  const thinwire::Layout layout({{"conv.weight", {64, 32, 3, 3}}, {"fc.weight", {1000, 256}}});
  thinwire::Reducer reducer(layout, {.compressor = "casq:bits=2", .rank = mpi.rank(), .world_size = mpi.world_size()});

  std::mt19937 random(static_cast<unsigned>(mpi.rank()));
  std::normal_distribution<float> normal;
  std::vector<float> gradient(layout.elements());
  for (float& value : gradient) value = normal(random);

  std::vector<thinwire::ParameterGradient> parameters;
  for (std::uint32_t p = 0; p < layout.parameters().size(); ++p) {
    const auto values = std::span(gradient).subspan(layout.offset(p), layout.parameters()[p].elements());
    parameters.push_back({p, thinwire::ElementType::kFloat32, std::as_writable_bytes(values)});
  }
  thinwire::Reduction reduction = reducer.reduce(parameters);
  run(reduction, *group[0]);  // the gradient now holds the mean, the same on every worker

  if (mpi.rank() == 0)
    std::printf("%d workers sent %.0f bytes each; float32 sums would have taken %.0f\n", mpi.world_size(),
                reducer.counters().traffic_bytes, reducer.counters().plain_traffic_bytes);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
