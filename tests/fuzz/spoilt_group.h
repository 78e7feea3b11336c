// A group of workers in one thread, one of which receives what the fuzzer makes of its peers' bytes.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "fuzz/fuzz_input.h"
#include "reducer/deliver.h"
#include "reducer/reseal.h"
#include "reducer/sample_gradients.h"
#include "thinwire/thinwire.h"

namespace thinwire::fuzz {

inline bool same(const std::vector<ParameterState>& a, const std::vector<ParameterState>& b) {
  return std::ranges::equal(a, b, [](const ParameterState& one, const ParameterState& other) {
    return one.name == other.name && one.steps == other.steps && one.residual == other.residual &&
           one.memory == other.memory;
  });
}

// The victim's end of a reduction. Broken: it has refused what arrived, or its peers went on to another collective.
enum class Outcome { kMean, kNotFinite, kBroken };

class SpoiltGroup {
 public:
  // peers_may_refuse: what the victim sends in later rounds follows from the spoilt bytes of earlier ones.
  SpoiltGroup(const Layout& layout, ReducerOptions options, std::size_t workers, std::size_t victim, bool peers_may_refuse = false)
      : victim_(victim), peers_may_refuse_(peers_may_refuse) {
    options.world_size = static_cast<int>(workers);
    for (options.rank = 0; options.rank < options.world_size; ++options.rank)
      reducers_.push_back(std::make_unique<Reducer>(layout, options));
  }

  Reducer& victim() { return *reducers_[victim_]; }

  std::vector<std::vector<ParameterState>> states() const {
    std::vector<std::vector<ParameterState>> states;
    for (const auto& reducer : reducers_) states.push_back(reducer->state());
    return states;
  }
  void load(const std::vector<std::vector<ParameterState>>& states) {
    for (std::size_t rank = 0; rank < reducers_.size(); ++rank) reducers_[rank]->load_state(states[rank]);
  }

  Outcome step(const std::string& content, Input& input) {
    gradients_ = testing::make_gradients(content, static_cast<int>(reducers_.size()), victim().layout().elements());
    const auto flagged = victim().counters().non_finite;
    std::vector<Reduction> reductions;
    for (std::size_t rank = 0; rank < reducers_.size(); ++rank)
      reductions.push_back(reducers_[rank]->reduce(testing::parameters_of(victim().layout(), gradients_[rank])));
    constexpr int kMostRounds = 30;  // unspoilt, the eleven parameters of fuzz_saved_state take 22 where bases come into use
    for (int rounds = 0; rounds <= kMostRounds; ++rounds) {
      const auto collectives = next(reductions);
      if (!collectives) return Outcome::kBroken;
      if (collectives->empty()) return victim().counters().non_finite > flagged ? Outcome::kNotFinite : Outcome::kMean;
      deliver(*collectives, input);
    }
    require(false, "a reduction ends");
    return Outcome::kBroken;
  }

  // What step() left in place of the victim's gradient.
  const std::vector<float>& mean() const { return gradients_[victim_]; }

 private:
  using Collectives = std::vector<Collective>;

  // Every worker's next collective; none at the end, nothing if the group is broken.
  std::optional<Collectives> next(std::vector<Reduction>& reductions) const {
    Collectives collectives;
    for (std::size_t rank = 0; rank < reductions.size(); ++rank) {
      try {
        if (const Collective* const collective = reductions[rank].next()) collectives.push_back(*collective);
      } catch (const PayloadError&) {
        require(rank == victim_ || peers_may_refuse_, "nothing that came as it was sent is refused");
        return std::nullopt;
      }
    }
    const auto differ = [](const Collective& one, const Collective& other) {
      return one.kind != other.kind || one.type != other.type || one.data.size() != other.data.size();
    };
    const bool all_or_none = collectives.empty() || collectives.size() == reductions.size();
    if (!all_or_none || std::ranges::adjacent_find(collectives, differ) != collectives.end())
      return std::nullopt;
    return collectives;
  }

  void deliver(const Collectives& posted, Input& input) const {
    testing::deliver(posted);
    const Collective& spoilt = posted[victim_];
    const bool is_root = spoilt.kind == CollectiveKind::kBroadcast && static_cast<std::size_t>(spoilt.root) == victim_;
    if (is_root) return;
    const std::span<std::byte> arrived = spoilt.result.empty() ? spoilt.data : spoilt.result;
    // Else nothing that is spoilt would come past the checksums.
    testing::spoil_and_reseal(arrived, posted.size(), [&](std::span<std::byte> bytes) { input.spoil(bytes); });
  }

  std::size_t victim_;
  bool peers_may_refuse_;
  std::vector<std::unique_ptr<Reducer>> reducers_;
  testing::Gradients gradients_;
};

inline bool all_finite(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

// A step with spoilt bytes, and what must hold behind it whatever they were. Sums of what was spoilt need not be finite.
inline void step_checked(SpoiltGroup& group, const std::string& content, Input& input, bool has_sums = false) {
  Reducer& victim = group.victim();
  const auto before = victim.state();
  const Outcome outcome = group.step(content, input);
  const auto after = victim.state();
  if (outcome != Outcome::kMean) return require(same(after, before), "what fails or is not finite leaves the memory as it was");
  require(has_sums || all_finite(group.mean()), "means are finite");
  for (const ParameterState& parameter : after) require(all_finite(parameter.residual), "residuals are finite");
  victim.load_state(after);
}

// A group that has taken a step. It is made once and used often: to make a compressor costs more than what is to be tested.
class UsedGroup {
 public:
  UsedGroup(SpoiltGroup group, const std::string& content) : group_(std::move(group)), states_(group_.states()) {
    begin_at(1);  // without training, which costs as much again
    Input honest(nullptr, 0);
    group_.step(content, honest);
    states_ = group_.states();
  }

  // With the memory after that step, taken for the one of this number.
  SpoiltGroup& begin_at(std::uint64_t steps) {
    for (auto& state : states_)
      for (ParameterState& parameter : state) parameter.steps = steps;
    group_.load(states_);
    return group_;
  }

 private:
  SpoiltGroup group_;
  std::vector<std::vector<ParameterState>> states_;
};

}  // namespace thinwire::fuzz
