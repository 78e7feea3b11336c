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

// Who moves the messages of collectives (Communicator::moves_alone).
enum class Progress : unsigned char {
  kAutomatic,  // a thread, where MPI grants MPI_THREAD_MULTIPLE
  kThread,     // of thinwire's own: messages move while gradients are computed and encoded
  kCaller,     // whoever waits for a collective: for MPI libraries, and simulators, that know one thread only
};

struct MpiOptions {
  int lanes = 1;                                              // groups, which are independent of each other
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // for a collective in which nothing moves
  std::vector<int> hosts = {};                                // as in ReducerOptions
  std::optional<int> communicator = {};                       // MPI_Comm_c2f() of one; none: MPI_COMM_WORLD
  Progress progress = Progress::kAutomatic;
};

// This worker's ends of `lanes` groups of all workers of an MPI communicator, called by all of them together. A thread that
// moves their messages needs MPI_THREAD_MULTIPLE, for which MpiEnvironment asks. Where it is the caller that does, all lanes are for the
// thread that MPI was started by (MPI_THREAD_SERIALIZED: for any one at a time), and run_lanes() serves them. Workers need not have the
// same progress. The communicator is duplicated: other messages on it are not disturbed. Throws ArgumentError.
std::vector<std::unique_ptr<Communicator>> make_mpi_communicators(const MpiOptions& options = {});

}  // namespace thinwire
