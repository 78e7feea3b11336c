// Workers that are MPI processes. To be linked with thinwire::mpi, which is there where thinwire was built with MPI.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "thinwire/communicator.h"

namespace thinwire {

// MPI, for as long as this lives. If MPI is not running yet it is started, with the thread support that thinwire needs,
// and ended with this; else nothing is done. Throws Error.
//
// After a PeerError MPI cannot be ended properly, because a worker that is lost takes no part in that. Then the process
// ends without it, and mpirun ends all others.
class MpiEnvironment {
 public:
  MpiEnvironment();
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  int rank() const;
  int world_size() const;

 private:
  bool started_ = false;
};

struct MpiOptions {
  int lanes = 1;                                              // groups, which are independent of each other
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // for a collective in which nothing moves
  std::vector<int> hosts = {};                                // as in ReducerOptions
  std::optional<int> communicator = {};                       // MPI_Comm_c2f() of one; none: MPI_COMM_WORLD
};

// This worker's ends of `lanes` groups of all workers of an MPI communicator, called by all of them together. A thread
// moves their messages, so MPI must have been started with MPI_THREAD_MULTIPLE (MpiEnvironment does). The communicator is
// duplicated: other messages on it are not disturbed. Throws ArgumentError.
std::vector<std::unique_ptr<Communicator>> make_mpi_communicators(const MpiOptions& options = {});

}  // namespace thinwire
