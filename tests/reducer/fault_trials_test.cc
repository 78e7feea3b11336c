// Random trials in which one worker fails at a random collective: every other worker ends with an error, soon, or with the
// right mean where that can still be had; never with a wrong one; and every worker's memory can be saved and loaded.
//
// Gathered messages of codes have a checksum, and any of their bits may be spoilt. A sum that became another sum is a value
// like others: no trial spoils one.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>

#include <gtest/gtest.h>

#include "reducer/row_specs.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

#if defined(__SANITIZE_THREAD__)
constexpr unsigned kTrials = 25;
#else
constexpr unsigned kTrials = 200;
#endif
constexpr std::chrono::milliseconds kTimeout = 100ms, kLong = 10min;
constexpr auto kSlack = 20s;  // for busy machines; what hangs would take kLong
constexpr unsigned kSteps = 2;

enum class Fault { kThrow, kAbandon, kStop, kLate, kTruncated, kOversized, kCorrupt };
constexpr std::size_t kFaults = 7;

struct Trial {
  unsigned seed;
  Layout layout;
  std::size_t workers, lanes;
  ReducerOptions options = {};
  std::vector<std::size_t> buckets = {0};  // the first parameter of each; bucket i travels in lane i mod lanes
  Fault fault = {};
  std::size_t victim = 0, lane = 0;
  std::size_t at = 0;  // number of the collective in the victim's lane
};

class Drawing {
 public:
  explicit Drawing(unsigned seed) : seed_(seed), random_(seed) {}

  Trial trial() {
    Trial trial{.seed = seed_, .layout = layout(), .workers = 2 + below(4), .lanes = 1 + below(2)};
    trial.fault = static_cast<Fault>(below(kFaults));
    trial.victim = below(trial.workers);
    trial.at = below(6);
    trial.options.compressor = spec(trial.fault);
    trial.options.rules = {{"p0", spec(trial.fault)}};
    trial.options.world_size = static_cast<int>(trial.workers);
    trial.options.lanes = static_cast<int>(trial.lanes);
    trial.options.threads = 1 + static_cast<int>(below(2));
    for (std::size_t i = 1; i < trial.layout.parameters().size(); ++i)
      if (below(2) == 0) trial.buckets.push_back(i);
    trial.lane = below(std::min(trial.lanes, trial.buckets.size()));
    return trial;
  }

 private:
  std::size_t below(std::size_t count) { return random_() % count; }

  Layout layout() {
    constexpr int kSizes[] = {0, 1, 7, 64, 1000, 33000};
    std::vector<Parameter> parameters;
    for (std::size_t count = 1 + below(6); parameters.size() < count;)
      parameters.push_back({std::string("p").append(std::to_string(parameters.size())), {kSizes[below(6)], 1}});
    return Layout(std::move(parameters));
  }

  // Any row, with any of its parameters' values; where a message is to be spoilt, rows whose gathered messages have a checksum.
  std::string spec(Fault fault) {
    std::string drawn = any_spec(fault);
    while (!is_allowed(drawn)) drawn = any_spec(fault);  // its values go together
    return drawn;
  }

  std::string any_spec(Fault fault) {
    const CompressorInfo* drawn = &compressors()[below(compressors().size())];
    while (fault == Fault::kCorrupt && drawn->unit != Unit::kElement) drawn = &compressors()[below(compressors().size())];
    const CompressorInfo& info = *drawn;
    std::string text = info.name;
    for (const SpecParameter& parameter : info.parameters) {
      std::string value = parameter.default_value;
      if (!parameter.choices.empty()) value = parameter.choices[below(parameter.choices.size())];
      if (parameter.kind == SpecParameter::Kind::kInteger) {
        const auto least = static_cast<std::size_t>(parameter.minimum);
        value = std::to_string(least >= 64 ? least * (1 + below(3)) : least + below(3));  // qsgd's buckets are multiples of 64
      }
      text += (text == info.name ? ":" : ",") + parameter.name + "=" + value;
    }
    return text;
  }

  unsigned seed_;
  std::mt19937 random_;
};

struct BrokenOff : Error {
  using Error::Error;
};

// The victim's end of its lane.
class FaultyCommunicator : public Communicator {
 public:
  FaultyCommunicator(Communicator& real, const Trial& trial, const std::atomic<std::size_t>& ended,
                     std::atomic<bool>& happened)
      : real_(real), trial_(trial), ended_(ended), happened_(happened) {}

  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  void abandon() noexcept override { real_.abandon(); }

  void perform(const Collective& collective) override {
    const bool now = count_++ >= trial_.at && !happened_ && (trial_.fault != Fault::kCorrupt || is_coded(collective));
    if (!now) return real_.perform(collective);
    happened_ = true;
    spoil(collective);
  }

 private:
  static bool is_coded(const Collective& collective) {
    return !collective.result.empty() && collective.purpose != Purpose::kSetup;
  }

  void spoil(const Collective& collective) {
    switch (trial_.fault) {
      case Fault::kThrow:
        throw BrokenOff("as planned");
      case Fault::kAbandon:
        real_.abandon();
        break;
      case Fault::kStop:
        for (const auto start = Clock::now(); ended_ < trial_.workers - 1 && Clock::now() - start < kSlack;)
          std::this_thread::sleep_for(1ms);
        break;
      case Fault::kLate:
        std::this_thread::sleep_for(5ms);
        break;
      case Fault::kTruncated:
        return perform_with(collective, collective.data.size() / 2);
      case Fault::kOversized:
        return perform_with(collective, 2 * collective.data.size() + 64);
      case Fault::kCorrupt:
        real_.perform(collective);
        return corrupt(collective);
    }
    real_.perform(collective);
  }

  // The same collective of another length.
  void perform_with(const Collective& collective, std::size_t bytes) {
    const std::size_t unit = element_bytes(collective.type) * (collective.kind == CollectiveKind::kScatter ? workers() : 1);
    std::vector<std::uint64_t> data((bytes + 7) / 8), result(data.size() * workers());
    Collective other = collective;
    other.data = std::as_writable_bytes(std::span(data)).first(bytes / unit * unit);
    const bool gathers = collective.kind == CollectiveKind::kGather;
    if (!collective.result.empty())
      other.result = std::as_writable_bytes(std::span(result)).first(other.data.size() * (gathers ? workers() : 1));
    real_.perform(other);
  }

  // Some bits of a byte, anywhere in the message of some worker.
  void corrupt(const Collective& collective) const {
    std::mt19937 random(trial_.seed);
    collective.result[random() % collective.result.size()] ^= static_cast<std::byte>(1 + random() % 255);
  }

  std::size_t workers() const { return static_cast<std::size_t>(world_size()); }

  Communicator& real_;
  const Trial& trial_;
  const std::atomic<std::size_t>& ended_;
  std::atomic<bool>& happened_;
  std::size_t count_ = 0;
};

enum class Ending { kMeans, kPeerError, kPayloadError, kBrokenOff, kOther };

// All workers' steps, with the fault or without.
class TrialRun {
 public:
  TrialRun(const Trial& trial, const std::vector<Gradients>& gradients, bool with_fault)
      : trial_(trial), with_fault_(with_fault), gradients_(gradients) {
    ReducerOptions options = trial.options;
    for (options.rank = 0; options.rank < options.world_size; ++options.rank)
      reducers_.push_back(std::make_unique<Reducer>(trial.layout, options));
    for (std::size_t lane = 0; lane < trial.lanes; ++lane) {
      const bool gives_up = with_fault && trial.fault == Fault::kStop && lane == trial.lane;
      groups_.push_back(make_local_communicators(options.world_size, gives_up ? kTimeout : kLong));
    }
    endings_.assign(trial.workers, std::vector<Ending>(trial.lanes));
  }

  void run() {
    on_threads(static_cast<int>(trial_.workers * trial_.lanes), [this](int thread) {
      const auto index = static_cast<std::size_t>(thread);
      run_lane(index / trial_.lanes, index % trial_.lanes);
    });
  }

  Ending ending(std::size_t rank, std::size_t lane) const { return endings_[rank][lane]; }
  bool happened() const { return happened_; }
  Reducer& reducer(std::size_t rank) { return *reducers_[rank]; }

  // What a lane has left in place of the gradients of its buckets.
  std::vector<float> means(std::size_t rank, std::size_t lane) const {
    std::vector<float> all;
    for (const Gradients& gradients : gradients_)
      for (std::size_t bucket = lane; bucket < trial_.buckets.size(); bucket += trial_.lanes) {
        const auto first = gradients[rank].begin() + static_cast<std::ptrdiff_t>(begin_of(bucket));
        all.insert(all.end(), first, first + static_cast<std::ptrdiff_t>(begin_of(bucket + 1) - begin_of(bucket)));
      }
    return all;
  }

 private:
  // The first parameter of a bucket, and its first element.
  std::size_t parameter_of(std::size_t bucket) const {
    return bucket < trial_.buckets.size() ? trial_.buckets[bucket] : trial_.layout.parameters().size();
  }
  std::uint64_t begin_of(std::size_t bucket) const {
    return bucket < trial_.buckets.size() ? trial_.layout.offset(trial_.buckets[bucket]) : trial_.layout.elements();
  }

  void run_lane(std::size_t rank, std::size_t lane) {
    Communicator& real = *groups_[lane][rank];
    FaultyCommunicator faulty(real, trial_, ended_, happened_);
    const bool is_victim = with_fault_ && rank == trial_.victim && lane == trial_.lane;
    endings_[rank][lane] = ending_of([&] { exchange(rank, lane, is_victim ? faulty : real); });
    if (endings_[rank][lane] != Ending::kMeans) real.abandon();
    if (lane == trial_.lane && !is_victim) ++ended_;
  }

  void exchange(std::size_t rank, std::size_t lane, Communicator& communicator) {
    for (Gradients& gradients : gradients_)
      for (std::size_t bucket = lane; bucket < trial_.buckets.size(); bucket += trial_.lanes) {
        const auto parameters =
            parameters_of(trial_.layout, gradients[rank], parameter_of(bucket), parameter_of(bucket + 1));
        Reduction reduction = reducer(rank).reduce(parameters, static_cast<int>(lane));
        thinwire::run(reduction, communicator);
      }
  }

  template <class Action>
  static Ending ending_of(Action action) {
    try {
      action();
      return Ending::kMeans;
    } catch (const PeerError&) {
      return Ending::kPeerError;
    } catch (const PayloadError&) {
      return Ending::kPayloadError;
    } catch (const BrokenOff&) {
      return Ending::kBrokenOff;
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
      return Ending::kOther;
    }
  }

  const Trial& trial_;
  bool with_fault_;
  std::vector<Gradients> gradients_;  // by step
  std::vector<std::unique_ptr<Reducer>> reducers_;
  std::vector<std::vector<std::unique_ptr<Communicator>>> groups_;  // by lane, then by worker
  std::vector<std::vector<Ending>> endings_;                        // by worker, then by lane
  std::atomic<std::size_t> ended_ = 0;
  std::atomic<bool> happened_ = false;
};

// What the victim ends with.
Ending due(Fault fault) {
  switch (fault) {
    case Fault::kThrow:
      return Ending::kBrokenOff;
    case Fault::kLate:
      return Ending::kMeans;
    case Fault::kCorrupt:
      return Ending::kPayloadError;
    default:
      return Ending::kPeerError;
  }
}

// Whether another worker in the victim's lane may have its means: it may be done before it needs the victim again.
bool may_go_on(Fault fault) { return fault == Fault::kLate || fault == Fault::kCorrupt; }

void check_ending(const Trial& trial, const TrialRun& run, std::size_t rank, std::size_t lane) {
  const Ending ending = run.ending(rank, lane);
  if (lane != trial.lane) {
    EXPECT_EQ(ending, Ending::kMeans);
  } else if (run.happened() && rank == trial.victim) {
    EXPECT_EQ(ending, due(trial.fault));
  } else if (run.happened() && !may_go_on(trial.fault)) {
    EXPECT_EQ(ending, Ending::kPeerError);
  } else {
    EXPECT_TRUE(ending == Ending::kMeans || (ending == Ending::kPeerError && trial.fault != Fault::kLate));
  }
}

void check_memory(const Reducer& survivor, Reducer& other) {
  const auto state = survivor.state();
  ASSERT_NO_THROW(other.load_state(state));
  const auto loaded = other.state();
  for (std::size_t i = 0; i < state.size(); ++i) {
    EXPECT_EQ(loaded[i].residual, state[i].residual);
    EXPECT_EQ(loaded[i].memory, state[i].memory);
  }
}

// Whether the fault came to happen: a lane may have fewer collectives.
bool check(const Trial& trial) {
  std::vector<Gradients> gradients;
  for (unsigned step = 0; step < kSteps; ++step)
    gradients.push_back(
        make_gradients("laplace", trial.options.world_size, trial.layout.elements(), trial.seed + step));
  TrialRun right(trial, gradients, false), faulty(trial, gradients, true);
  right.run();
  const auto start = Clock::now();
  faulty.run();
  EXPECT_LT(Clock::now() - start, kTimeout + kSlack);
  for (std::size_t rank = 0; rank < trial.workers; ++rank) {
    for (std::size_t lane = 0; lane < trial.lanes; ++lane) {
      check_ending(trial, faulty, rank, lane);
      if (faulty.ending(rank, lane) == Ending::kMeans) {
        EXPECT_EQ(faulty.means(rank, lane), right.means(rank, lane));
      }
    }
    check_memory(faulty.reducer(rank), right.reducer(rank));
  }
  return faulty.happened();
}

TEST(FaultTrials, EverybodyEndsWithAnErrorOrTheRightMean) {
  unsigned happened = 0;
  for (unsigned seed = 0; seed < kTrials && !HasFailure(); ++seed) {
    const Trial trial = Drawing(seed).trial();
    SCOPED_TRACE("seed " + std::to_string(seed) + ", fault " + std::to_string(static_cast<int>(trial.fault)));
    if (check(trial)) ++happened;
  }
  EXPECT_GT(happened, kTrials / 2);
}

}  // namespace
}  // namespace thinwire::testing
