// One worker's part in measuring a real all-reduce: compressed, against uncompressed, in turns.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "thinwire/communicator.h"
#include "thinwire/pipelining.h"
#include "thinwire/reducer.h"
#include "thinwire/trace.h"

namespace thinwire::tool {

inline constexpr int kPlainLanes = 4;  // of uncompressed sums, if none are given: more do not make them faster

struct AllreduceOptions {
  std::string compressor;
  std::uint64_t elements = 25'600'000;
  std::optional<Layout> layout;  // of so many elements; without: parameters of a bucket each
  std::optional<std::uint64_t> bucket_elements;  // uncompressed: kBucketElements
  std::optional<int> lanes;                      // what is not given is chosen by what a trial costs
  std::vector<int> hosts = {};  // as in ReducerOptions; of the compressed reductions
  int threads = 1;  // of a worker, that encode and decode for all its lanes
  int warm_up = 1;  // compressed reductions before those that count
  int repetitions = 7;
  int workers_of_process = 1;  // that share its processor time
  std::uint64_t seed = 0;
  std::optional<std::string> trace;      // file
  std::optional<std::string> interface;  // whose counter is read
};

inline constexpr int kMostChosenLanes = 8;

// A way to cut the gradient, with the lanes that should suit it.
struct TriedDivision {
  std::uint64_t bucket_elements = 0;
  int buckets = 0;
  int lanes = 0;
  double seconds = 0;  // the best of a few reductions, of the slowest worker
};

struct AllreduceFigures {
  std::uint64_t bucket_elements = 0;
  int buckets = 0;
  int lanes = 0;
  std::optional<ReductionCost> cost;  // of the trial, if there was one
  std::vector<TriedDivision> tried;   // in it
  std::vector<double> seconds;        // by repetition, of the slowest worker
  std::vector<double> plain_seconds;  // likewise, by uncompressed sums
  double first_seconds = 0;           // the first reduction, in which clusters are trained; of the slowest worker
  double traffic_bytes = 0;           // that a worker sends, without those of the first; mean over workers
  double plain_traffic_bytes = 0;
  double within_host_bytes = 0;       // of the compressed ones, where hosts are told apart: not in traffic_bytes
  double codec_seconds = 0;  // encoding and decoding, all lanes; mean over workers
  double processor_seconds = 0;  // of all a worker's threads, the system's part included, in one reduction; mean over workers
  double plain_processor_seconds = 0;
  std::optional<double> wire_bytes;        // that left the interface in one reduction, headers and all; mean over workers
  std::optional<double> plain_wire_bytes;
  Link link;                        // as measured beforehand
  std::optional<double> nmse_mean;  // of the first mean, against the uncompressed one
};

// Called by all workers, each with its ends of options.lanes groups, or of kMostChosenLanes. The last reduction goes to `trace`, if there is one.
// Throws Error if workers' means differ in any bit.
AllreduceFigures measure_allreduce(std::vector<std::unique_ptr<Communicator>>& lanes, const AllreduceOptions& options, Trace* trace);

// Every worker's text, in rank order.
std::vector<std::string> gather_texts(const std::string& mine, Communicator& communicator);

}  // namespace thinwire::tool
