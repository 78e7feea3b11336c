#include "thinwire/mpi.h"

// An MPI program that never names MPI: alone, it is a group of one worker.
int main() {
  const thinwire::MpiEnvironment environment;
  const auto group = thinwire::make_mpi_communicators();
  return group[0]->world_size() == environment.world_size() ? 0 : 1;
}
