// Where compressors meet communicators: one Reducer on each worker averages gradients over all workers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "thinwire/collective.h"
#include "thinwire/communicator.h"
#include "thinwire/layout.h"
#include "thinwire/link.h"
#include "thinwire/trace.h"

namespace thinwire {

// Parameters whose name matches the glob `pattern` (*, ?, [...]) are compressed by `spec`.
struct Rule {
  std::string pattern;
  std::string spec;
};

inline constexpr int kMostThreads = 256;

struct ReducerOptions {
  std::string compressor = "casq:bits=2";
  std::vector<Rule> rules = {};  // the first that matches decides
  bool small_uncompressed = false;  // what no rule names and is small (is_small) travels as "none"
  std::uint64_t seed = 0;       // the same on every worker
  int rank = 0;
  int world_size = 1;
  int lanes = 1;                // how many reductions may be in flight at once
  int threads = 1;              // that encode and decode, with the caller, up to kMostThreads; may differ between workers
  // Of each worker, a number that names its host; empty, or as many hosts as workers: none share one. Workers of a host add up their gradients
  // as they are, and each averages its part of them over the hosts, compressed: what leaves a host, codecs' work and residuals are
  // divided by the number of its workers, or by that of the host with the fewest.
  std::vector<int> hosts = {};
  bool host_memory = true;      // by memory that a host's workers share, where they all can and may; else by messages
  Link link = {};               // if it is known beforehand; the same on every worker
  bool keep_old_residuals = false;  // where failed steps are expected, as under loss scaling: they then leave residuals as they were
  // Reduce-scatter: of each parameter of the layout, the worker that alone gets its mean; the same on every worker. The others' gradients
  // stay as they are. Empty: every worker gets every mean. Takes keep_old_residuals, and compressors that serve owners.
  std::vector<std::uint32_t> owners = {};
  // All-gather, with owners: every worker gets what a parameter's owner has, as it is decoded, and nothing is averaged. The others pass zeros.
  // There are no residuals, whatever specs say: who wants nothing lost passes by how much values differ from what all have got so far.
  bool from_owners = false;
  int measure_every = 0;        // measure the compression error at every so many reductions of a parameter; 0: never
  Trace* trace = nullptr;       // where to tell what happens when; outlives the reducer
};

// The default policy of the PyTorch hook: biases, norms and other small parameters are not worth compressing.
bool is_small(const Parameter& parameter);

// Elements of a chunk: workers that share the averaging of a gradient among themselves do so in whole chunks, and take as long as the one
// with the most. 32,768 up to 8 workers; from there on so few, by halves, that of a layout of `elements`, or of a bucket of 25 MiB if that is less, each
// worker has 12 or more, but not fewer than suits the compressor, and 4,096. Where there are no owners, and of compressors that work on slices, rows or parameters: 32,768.
// Throws ArgumentError for a spec that is not allowed.
std::uint64_t chunk_elements(const std::string& compressor, int world_size, std::uint64_t elements);

// One parameter's gradient: elements of `type` (kFloat32, kBfloat16 or kFloat16), replaced by the mean over all workers.
struct ParameterGradient {
  std::uint32_t parameter = 0;  // index in the layout
  ElementType type = ElementType::kFloat32;
  std::span<std::byte> data;
};

// Elements first .. first + elements - 1 of a parameter, perhaps none.
struct ParameterRange {
  std::uint64_t first = 0;
  std::uint64_t elements = 0;
};

// Sums over all reductions of this worker since its construction.
struct Counters {
  std::uint64_t reductions = 0;
  std::uint64_t rounds = 0;               // collectives; where hosts are told apart, between hosts
  std::uint64_t elements = 0;             // elements reduced; where workers share hosts, of this worker's part
  std::uint64_t compressed_elements = 0;  // of those, by another compressor than "none"
  std::uint64_t setup_bytes = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t second_bytes = 0;
  double traffic_bytes = 0;        // sent, by the collectives' standard algorithms
  double plain_traffic_bytes = 0;  // what ring all-reduce of the uncompressed gradient would have sent
  double within_host_bytes = 0;    // sent to workers of the same host, where hosts are told apart; in neither of the above
  double row_traffic_bytes = 0;    // of traffic_bytes, what compressors of rows sent
  std::uint64_t row_elements = 0;  // of elements, those that travelled by compressors of rows
  std::uint64_t fallbacks = 0;     // messages in which these found too few empty rows and travelled as "none" does
  std::uint64_t non_finite = 0;    // reductions whose mean is NaN because some worker's gradient was not finite, or a mean could not be stored
  std::uint64_t failed_steps = 0;
  double setup_seconds = 0;
  double encode_seconds = 0;
  double wire_seconds = 0;  // from a collective's start to its result
  double decode_seconds = 0;
  double measured_energy = 0;  // sum of squares of what was encoded, where it was measured
  double error_energy = 0;     // sum of squares of (encoded - decoded), likewise; null error where measured is 0
};

class Reducer;

// A reduction on its way. Ask next() for a collective, perform it, ask again; null means that the gradients now hold the
// mean. Between calls the gradients belong to the reduction. Destroying it early, or an exception out of next(), fails its step
// and leaves residuals as they were, and gradients too, unless they travel by "none", "bf16" or "fp16" without feedback.
class Reduction {
 public:
  Reduction(Reduction&&) noexcept;
  Reduction& operator=(Reduction&&) noexcept;
  ~Reduction();

  const Collective* next();

 private:
  friend class Reducer;
  struct State;
  explicit Reduction(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Asks for and performs collectives until the reduction is done.
void run(Reduction& reduction, Communicator& communicator);

// The same for all lanes of a worker, from the calling thread alone: next_of(lane) is asked for a lane's next reduction when it has none,
// until it gives none. What other lanes send moves meanwhile, if their communicators know perform() in parts.
void run_lanes(std::span<const std::unique_ptr<Communicator>> lanes, const std::function<std::optional<Reduction>(std::size_t lane)>& next_of);

// A worker's saved memory, in a form any framework can store: of its part of the parameter (Reducer::part).
struct ParameterState {
  std::string name;
  std::uint64_t steps = 0;        // committed so far
  std::vector<float> residual;    // empty: none yet, or no feedback
  std::vector<std::byte> memory;  // the compressor's own, e.g. trained thresholds; versioned
};

class Reducer {
 public:
  // Throws ArgumentError.
  Reducer(Layout layout, ReducerOptions options);
  ~Reducer();

  // A step is what an optimizer applies, or skips, as a whole: the reductions between begin_step() and end_step(), in any lanes,
  // of each parameter at most once. A reduction outside of these is a step of its own. A step fails if in any of its reductions
  // a worker's gradient is not finite or a mean cannot be stored in its type; all workers find that alike. Counts, what
  // compressors remember and residuals then are as before it. The means that are finite nevertheless
  //   - with keep_old_residuals are for nobody: the step's gradients are dropped on all workers, as plain training drops them;
  //   - without it have been sent, and are given back to the residuals, to be sent again with the next step, but where a compressor keeps
  //     the old residual by itself (`casq:rate=`, `ef21`); an element of every parameter's mean is made NaN, so that no optimizer uses it.
  // So the gradients must stay where they are until end_step(), which returns false for a step that has failed.
  // Throws ArgumentError if a step has begun already, or has not; end_step() also while a reduction is in flight.
  void begin_step();
  bool end_step();
  // What belongs to the step and travels otherwise is not finite, as all workers know: the step at hand fails. For any thread. With owners,
  // a mean that cannot be stored is known to its owner alone: workers tell each other before end_step() whether to call this.
  void fail_step();

  // Starts to average some whole parameters. Every worker passes the same parameters in the same order; reductions of one
  // lane run one after another. Results do not depend on how parameters are divided among reductions. `loss_scale`:
  // gradients are this many times too large (residuals are kept unscaled). Throws ArgumentError.
  Reduction reduce(std::span<const ParameterGradient> gradients, int lane = 0, double loss_scale = 1);

  // Finds out what the link can do, which compressors that choose by it (`reduce=auto`) want to know: a reduction of nothing,
  // performed like any other. Before anything else is reduced, by all workers.
  Reduction measure_link(int lane = 0);
  const Link& link() const;
  // Whether any parameter's compressor chooses by the link.
  bool chooses_by_link() const;

  // Equal on workers that may exchange with each other: version, layout, compressors, seed and world size.
  std::uint64_t fingerprint() const;
  // The same as text, to show what differs.
  std::string description() const;

  const Layout& layout() const;
  // The canonical spec that parameter `index` travels by.
  const std::string& compressor_of(std::size_t index) const;
  // Whether what it loses is kept for the next step.
  bool keeps_residual(std::size_t index) const;
  // What this worker compresses of parameter `index`: all of it, unless workers share hosts.
  ParameterRange part(std::size_t index) const;
  // As in the options; empty where none is shared.
  std::span<const int> hosts() const;

  Counters counters() const;

  // Throw StateError within a step or while a reduction is in flight. load_state() changes nothing if it throws StateError. It takes
  // the part out of a residual of the whole parameter; memories must be of the part, or empty.
  std::vector<ParameterState> state() const;
  void load_state(std::span<const ParameterState> states);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire
