#include "reducer/step_trials.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "core/host_groups.h"
#include "reducer/deliver.h"
#include "reducer/trial_specs.h"
#include "thinwire/thinwire.h"

namespace thinwire::testing {
namespace {

using Doubles = std::vector<double>;

float from_half(std::uint16_t bits) {
  const int sign = bits >> 15, exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                           : exponent == 0 ? std::ldexp(fraction, -24)
                                           : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>(sign ? -magnitude : magnitude);
}

// One worker's gradient of one parameter, of any type.
class TypedGradient {
 public:
  TypedGradient(ElementType type, std::size_t elements) : type_(type), bytes_(elements * element_bytes(type)) {}

  std::size_t size() const { return bytes_.size() / element_bytes(type_); }
  ElementType type() const { return type_; }
  std::span<std::byte> bytes() { return bytes_; }
  bool same_bits(const TypedGradient& other) const { return bytes_ == other.bytes_; }

  double get(std::size_t i) const {
    if (type_ == ElementType::kFloat32) return static_cast<double>(word<float>(i));
    const auto half = word<std::uint16_t>(i);
    if (type_ == ElementType::kFloat16) return static_cast<double>(from_half(half));
    return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16));
  }
  // Rounded in a simple way: what is stored is read back by get().
  void set(std::size_t i, float value) {
    if (type_ == ElementType::kFloat32) return put(i, value);
    if (type_ == ElementType::kBfloat16) return put(i, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
    if (!std::isfinite(value)) return put(i, std::uint16_t{0x7e00});
    std::uint16_t nearest = 0;
    int exponent;
    const float fraction = std::frexp(std::abs(value), &exponent);  // in [0.5, 1)
    if (exponent >= -13 && exponent <= 15)
      nearest = static_cast<std::uint16_t>((exponent + 14) << 10 | (static_cast<int>(fraction * 2048) & 1023));
    put(i, static_cast<std::uint16_t>(nearest | (std::signbit(value) ? 0x8000 : 0)));
  }

 private:
  template <class T>
  T word(std::size_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void put(std::size_t i, T value) {
    std::memcpy(bytes_.data() + i * sizeof(T), &value, sizeof(T));
  }

  ElementType type_;
  std::vector<std::byte> bytes_;
};

enum class Fate { kFine, kNotFinite, kUnused, kBrokenOff };

struct Bucket {
  std::vector<std::uint32_t> parameters;
  Fate fate = Fate::kFine;
  bool reduced = false;         // in this step
  std::vector<bool> committed;  // by worker; after the step
};

class StepTrial {
 public:
  explicit StepTrial(std::uint64_t seed) : random_(seed) {
    const TrialSpec& spec = pick(trial_specs());
    spec_ = &spec;
    choose_workers();
    make_layout();
    options_.compressor = spec.text;
    options_.seed = seed;
    options_.keep_old_residuals = choose(2) == 1;
    options_.threads = choose(8) == 0 ? 3 : 1;
    options_.measure_every = choose(3) == 0 ? 1 : 0;
    explicit_steps_ = choose(4) != 0;
    cut_buckets();
    make_reducers();
    result_.description = spec.text + ", " + std::to_string(workers_) + " workers" + (two_levels() ? " on hosts, " : ", ") + std::to_string(layout_->parameters().size()) +
                          " parameters, " + std::to_string(buckets_.size()) + " buckets, old residuals " +
                          (options_.keep_old_residuals ? "kept" : "not kept") + (explicit_steps_ ? "" : ", every bucket a step");
  }

  StepTrialResult run() {
    const int steps = 2 + static_cast<int>(choose(6));
    try {
      for (int step = 0; step < steps && result_.failure.empty(); ++step) {
        one_step();
        ++result_.steps;
        if (result_.failure.empty() && choose(5) == 0) change_workers();
      }
    } catch (const Error& error) {
      fail(error.what());
    }
    return std::move(result_);
  }

 private:
  std::uint64_t choose(std::uint64_t below) { return random_() % below; }
  template <class T>
  const T& pick(const std::vector<T>& of) { return of[choose(of.size())]; }
  void fail(const std::string& what) {
    if (result_.failure.empty()) result_.failure = "step " + std::to_string(result_.steps) + ": " + what;
  }

  // A third of the trials are on two levels: even and uneven hosts, one with one worker, and all workers on one.
  void choose_workers() {
    constexpr int kWorkerCounts[] = {1, 2, 3, 5};
    static const std::vector<std::vector<int>> kHosts = {{0, 0, 1, 1}, {0, 1, 0, 1, 1}, {0, 0, 0, 1}, {0, 0, 0}, {4, 4, 3, 3, 2, 2}};
    workers_ = kWorkerCounts[choose(4)];
    options_.hosts.clear();
    if (choose(3) == 0) {
      options_.hosts = pick(kHosts);
      options_.host_memory = choose(2) == 0;
      workers_ = static_cast<int>(options_.hosts.size());
    }
    groups_.clear();
    for (int worker = 0; worker < workers_; ++worker) groups_.emplace_back(options_.hosts, worker, workers_);
  }

  bool two_levels() const { return !options_.hosts.empty(); }

  void make_layout() {
    std::vector<Parameter> parameters;
    const std::size_t count = 1 + choose(6);
    for (std::size_t p = 0; p < count; ++p) {
      Parameter parameter{std::string("p").append(std::to_string(p)), {}};
      switch (choose(5)) {
        case 0: parameter.shape = {static_cast<std::int64_t>(choose(40))}; break;
        case 1: parameter.shape = {static_cast<std::int64_t>(1 + choose(60)), static_cast<std::int64_t>(1 + choose(24))}; break;
        case 2: parameter.shape = {8, static_cast<std::int64_t>(1 + choose(6)), 3, 3}; break;
        case 3: parameter.shape = {static_cast<std::int64_t>(choose(8) == 0 ? 70001 : 300)}; break;
        default: parameter.shape = {32, 16}; break;
      }
      parameters.push_back(std::move(parameter));
    }
    layout_ = std::make_unique<Layout>(std::move(parameters));
    constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16};
    for (std::size_t p = 0; p < count; ++p) types_.push_back(kTypes[choose(4)]);
  }

  void cut_buckets() {
    const std::size_t most = 1 + choose(6);
    for (std::uint32_t p = 0; p < layout_->parameters().size(); ++p) {
      if (buckets_.empty() || (buckets_.size() < most && choose(2) == 0)) buckets_.emplace_back();
      buckets_.back().parameters.push_back(p);
    }
  }

  void make_reducers() {
    reducers_.clear();
    options_.world_size = workers_;
    for (options_.rank = 0; options_.rank < workers_; ++options_.rank)
      reducers_.push_back(std::make_unique<Reducer>(*layout_, options_));
  }

  // --- a step

  void one_step() {
    loss_scale_ = choose(2) == 0 ? 1 : std::ldexp(1.0, static_cast<int>(choose(9)) - 2);
    make_gradients();
    inputs_ = gradients_;
    std::vector<std::vector<ParameterState>> before = states();
    if (explicit_steps_)
      for (auto& reducer : reducers_) reducer->begin_step();
    for (Bucket& bucket : buckets_) {
      // A lane that has lost a worker is of no use to the others of its host.
      const bool lane_is_lost = two_levels() && any_lost();
      if (lane_is_lost) bucket.fate = Fate::kBrokenOff;
      if (!lane_is_lost) reduce(bucket);
    }
    std::vector<bool> ended(static_cast<std::size_t>(workers_), true);
    if (explicit_steps_)
      for (std::size_t w = 0; w < ended.size(); ++w) ended[w] = reducers_[w]->end_step();
    check_step(before, ended);
  }

  void make_gradients() {
    gradients_.assign(static_cast<std::size_t>(workers_), {});
    const float magnitude = loss_scale_ < 1 ? 0.3f : 0.01f;
    std::normal_distribution<float> normal;
    for (auto& of_worker : gradients_)
      for (std::size_t p = 0; p < types_.size(); ++p) {
        TypedGradient gradient(types_[p], layout_->parameters()[p].elements());
        const bool sparse = choose(3) == 0, absent = choose(9) == 0;
        const std::size_t row = std::max<std::size_t>(gradient.size() / static_cast<std::size_t>(std::max<std::int64_t>(1, first_dimension(p))), 1);
        bool on = true;
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          if (i % row == 0) on = !sparse || choose(4) == 0;
          const float value = magnitude * static_cast<float>(loss_scale_) * normal(random_);
          gradient.set(i, on && !absent ? value : 0.0f);
        }
        of_worker.push_back(std::move(gradient));
      }
    for (Bucket& bucket : buckets_) {
      const std::uint64_t dice = choose(20);
      bucket.fate = dice < 2 ? Fate::kNotFinite : dice < 3 ? Fate::kUnused : dice < 4 ? Fate::kBrokenOff : Fate::kFine;
      bucket.reduced = false;
      bucket.committed.assign(static_cast<std::size_t>(workers_), false);
      std::uint64_t elements = 0;
      for (const std::uint32_t p : bucket.parameters) elements += layout_->parameters()[p].elements();
      if (elements == 0) bucket.fate = Fate::kFine;
      if (bucket.fate == Fate::kNotFinite) spoil(bucket);
      if (bucket.fate == Fate::kUnused)
        for (auto& of_worker : gradients_)
          for (const std::uint32_t p : bucket.parameters) std::ranges::fill(of_worker[p].bytes(), std::byte{0});
    }
  }

  std::int64_t first_dimension(std::size_t p) const {
    return layout_->parameters()[p].shape.empty() ? 1 : layout_->parameters()[p].shape[0];
  }

  void spoil(const Bucket& bucket) {
    for (;;) {
      TypedGradient& gradient = gradients_[choose(gradients_.size())][pick(bucket.parameters)];
      if (gradient.size() == 0) continue;
      gradient.set(choose(gradient.size()), choose(2) ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity());
      return;
    }
  }

  // Goes from collective to collective; where it is broken off, at one of them, some workers may be one further than others.
  void reduce(Bucket& bucket) {
    bucket.reduced = true;
    std::vector<std::optional<Reduction>> reductions;
    for (std::size_t w = 0; w < reducers_.size(); ++w) {
      std::vector<ParameterGradient> parameters;
      for (const std::uint32_t p : bucket.parameters) parameters.push_back({p, types_[p], gradients_[w][p].bytes()});
      reductions.emplace_back(reducers_[w]->reduce(parameters, 0, loss_scale_));
    }
    std::uint64_t left = bucket.fate == Fate::kBrokenOff ? choose(two_levels() ? 12 : 5) : ~std::uint64_t{0};
    std::vector<std::optional<Collective>> posted(reductions.size());
    const auto go_on = [&](std::size_t w) {
      const Collective* const collective = reductions[w]->next();
      if (collective)
        posted[w] = *collective;
      else
        bucket.committed[w] = true;
    };
    std::vector<int> served(reductions.size());
    for (std::size_t w = 0; w < served.size(); ++w) served[w] = static_cast<int>(w);
    for (;; --left) {
      for (const int member : served) {
        const auto w = static_cast<std::size_t>(member);
        posted[w].reset();
        if (left == 0 && choose(2) == 0)
          reductions[w].reset();  // lost before it could read what arrived
        else
          go_on(w);
      }
      if (left == 0) return;
      served = complete_group(posted);
      if (served.empty() && std::ranges::any_of(posted, [](const auto& each) { return each.has_value(); }))
        return fail("workers ask for collectives of which others know nothing");
      if (served.empty()) return;
      std::vector<Collective> of_group;
      for (const int member : served) of_group.push_back(*posted[static_cast<std::size_t>(member)]);
      deliver(of_group);
    }
  }

  // The members of a group, all of which wait for it; none if there is no such.
  std::vector<int> complete_group(const std::vector<std::optional<Collective>>& posted) const {
    for (std::size_t w = 0; w < posted.size(); ++w) {
      if (!posted[w]) continue;
      const HostGroups& its = groups_[w];
      const auto members = its.members(posted[w]->group);
      const auto waits = [&](int member) {
        const auto& of_member = posted[static_cast<std::size_t>(member)];
        return of_member && of_member->group == posted[w]->group && of_member->kind == posted[w]->kind &&
               of_member->data.size() == posted[w]->data.size();
      };
      if (std::ranges::all_of(members, waits)) return {members.begin(), members.end()};
    }
    return {};
  }

  // --- what must hold

  std::vector<std::vector<ParameterState>> states() const {
    std::vector<std::vector<ParameterState>> all;
    for (const auto& reducer : reducers_) all.push_back(reducer->state());
    return all;
  }

  void check_step(const std::vector<std::vector<ParameterState>>& before, const std::vector<bool>& ended) {
    const auto after = states();
    // Workers that were broken off do not agree with the others any more, so each is looked at by itself.
    bool any_failed = false, any_broken = false;
    for (const Bucket& bucket : buckets_) {
      any_failed = any_failed || (bucket.reduced && bucket.fate == Fate::kNotFinite);
      any_broken = any_broken || (bucket.reduced && bucket.fate == Fate::kBrokenOff && !all_committed(bucket));
    }
    for (std::size_t w = 0; w < ended.size(); ++w) {
      bool missed = false;
      for (const Bucket& bucket : buckets_) missed = missed || (bucket.reduced && !bucket.committed[w]);
      if (explicit_steps_ && ended[w] == (any_failed || missed)) fail("worker " + std::to_string(w) + " takes the step for what it is not");
      if (!ended[w]) ++result_.failed_steps;
    }
    for (const Bucket& bucket : buckets_)
      if (bucket.reduced)
        for (const std::uint32_t p : bucket.parameters) check_parameter(p, bucket, before, after, any_failed, any_broken, ended);
    if (any_broken) restart_alike();
  }

  // Before some bucket of this step.
  bool any_lost() const {
    for (const Bucket& bucket : buckets_)
      if (bucket.fate == Fate::kBrokenOff && bucket.reduced && !all_committed(bucket)) return true;
    return false;
  }

  static bool all_committed(const Bucket& bucket) {
    return std::all_of(bucket.committed.begin(), bucket.committed.end(), [](bool yes) { return yes; });
  }

  bool keeps_residuals() const { return spec_->feedback; }

  void check_parameter(std::uint32_t p, const Bucket& bucket, const std::vector<std::vector<ParameterState>>& before,
                       const std::vector<std::vector<ParameterState>>& after, bool step_not_finite, bool any_broken,
                       const std::vector<bool>& ended) {
    const std::string name = "parameter " + std::to_string(p);
    for (std::size_t w = 0; w < ended.size(); ++w) {
      const bool untouched = !bucket.committed[w] || bucket.fate == Fate::kNotFinite;
      const bool dropped = explicit_steps_ ? !ended[w] : untouched;
      const ParameterState& was = before[w][p];
      const ParameterState& is = after[w][p];
      if (dropped && is.steps != was.steps) fail(name + ": a dropped step was counted");
      if (!dropped && is.steps != was.steps + 1) fail(name + ": a step was not counted");
      if (dropped && is.memory != was.memory && !was.memory.empty()) fail(name + ": a dropped step changed what the compressor remembers");
      // On two levels a part may have been committed, and its means given back, when another part turns out not to be finite, or a worker is lost.
      if (dropped && ((untouched && !two_levels()) || options_.keep_old_residuals) && !same(is.residual, was.residual))
        fail(name + ": a dropped step changed the residual of worker " + std::to_string(w));
      if (bucket.committed[w] && bucket.fate == Fate::kNotFinite) check_all_nan(gradients_[w][p], name);
      if (dropped && !untouched && !options_.keep_old_residuals && gradients_[w][p].size() > 0 && !std::isnan(gradients_[w][p].get(0)))
        fail(name + ": the mean of a failed step has no NaN");
    }
    if (bucket.fate == Fate::kNotFinite || !all_committed(bucket)) return;
    for (std::size_t w = 1; w < ended.size() && !any_broken; ++w)
      if (!gradients_[0][p].same_bits(gradients_[w][p])) fail(name + ": workers 0 and " + std::to_string(w) + " have different means");
    if (spec_->conserves && !any_broken) check_conservation(p, before, after, explicit_steps_ && step_not_finite);
  }

  void check_all_nan(const TypedGradient& gradient, const std::string& name) {
    for (std::size_t i = 0; i < gradient.size(); ++i)
      if (!std::isnan(gradient.get(i))) return fail(name + ": element " + std::to_string(i) + " of a mean that is not finite is no NaN");
  }

  // An empty residual is one of zeros.
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    const auto is_zero = [](float value) { return value == 0; };
    if (a.empty() || b.empty()) return std::all_of(a.begin(), a.end(), is_zero) && std::all_of(b.begin(), b.end(), is_zero);
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  static double at(const std::vector<float>& residual, std::size_t i) { return residual.empty() ? 0 : static_cast<double>(residual[i]); }

  // What worker w keeps of element i of a parameter. On two levels of its part alone, and one for several workers.
  double kept(std::size_t w, std::uint32_t p, const ParameterState& state, std::size_t i) const {
    if (!two_levels()) return at(state.residual, i);
    const ParameterRange part = reducers_[w]->part(p);
    if (i < part.first || i >= part.first + part.elements) return 0;
    return at(state.residual, i - part.first) / groups_[w].weight();
  }

  // Sum of gradients and old residuals = W times the mean that may be used, and the sum of new residuals.
  void check_conservation(std::uint32_t p, const std::vector<std::vector<ParameterState>>& before,
                          const std::vector<std::vector<ParameterState>>& after, bool dropped) {
    if (dropped && options_.keep_old_residuals) return;  // checked bit for bit
    // Of a step that failed, nothing may be used: all of it is in the residuals again, where there are any.
    if (dropped && !keeps_residuals()) return;
    const double scale = keeps_residuals() ? loss_scale_ : 1;
    double largest = 0, worst = 0;
    for (std::size_t i = 0; i < inputs_[0][p].size(); ++i) {
      double in = 0, out = dropped ? 0 : workers_ * gradients_[0][p].get(i) / scale;
      for (std::size_t w = 0; w < inputs_.size(); ++w) {
        in += inputs_[w][p].get(i) / scale + kept(w, p, before[w][p], i);
        out += kept(w, p, after[w][p], i);
        largest = std::max({largest, std::abs(inputs_[w][p].get(i) / scale), std::abs(kept(w, p, before[w][p], i)),
                            std::abs(kept(w, p, after[w][p], i))});
      }
      worst = std::max(worst, std::abs(in - out));
    }
    // Without a residual, and on two levels, nobody keeps what rounding the mean to 16 bits loses.
    const double stored = (keeps_residuals() && !two_levels()) || types_[p] == ElementType::kFloat32 ? 0 : types_[p] == ElementType::kFloat16 ? 1e-3 : 8e-3;
    const double tolerance = workers_ * ((spec_->rounding + stored) * largest + (types_[p] == ElementType::kFloat16 ? 1e-7 : 1e-40));
    if (!(worst <= tolerance))
      fail("parameter " + std::to_string(p) + (dropped ? " (dropped)" : "") + ": " + std::to_string(worst / std::max(largest, 1e-300)) +
           " of the largest value were lost or made up");
  }

  // After a lost peer a job goes on from what one worker has saved: of the residuals each its own.
  void restart_alike() {
    auto saved = states();
    for (std::size_t w = 1; w < saved.size(); ++w)
      for (std::size_t p = 0; p < saved[w].size(); ++p) {
        saved[w][p].steps = saved[0][p].steps;
        saved[w][p].memory = saved[0][p].memory;
      }
    // Their parts' memories may be of different steps now.
    if (two_levels())
      for (auto& of_worker : saved)
        for (ParameterState& state : of_worker) forget(state);
    make_reducers();
    for (std::size_t w = 0; w < saved.size(); ++w) reducers_[w]->load_state(saved[w]);
  }

  static void forget(ParameterState& state) {
    state.steps = 0;
    state.memory.clear();
  }

  // Saves, and goes on with another number of workers, perhaps on other hosts: each gets the mean of the residuals.
  void change_workers() {
    const auto saved = states();
    std::vector<Doubles> means(types_.size());
    for (std::uint32_t p = 0; p < types_.size(); ++p) {
      means[p].resize(layout_->parameters()[p].elements());
      for (std::size_t i = 0; i < means[p].size(); ++i)
        for (std::size_t w = 0; w < saved.size(); ++w) means[p][i] += kept(w, p, saved[w][p], i) / static_cast<double>(saved.size());
    }
    const bool were_two_levels = two_levels();
    choose_workers();
    make_reducers();
    for (std::size_t w = 0; w < reducers_.size(); ++w) {
      std::vector<ParameterState> mine = saved[w % saved.size()];
      for (std::size_t p = 0; p < mine.size(); ++p) {
        const bool any = std::ranges::any_of(saved, [p](const auto& of_worker) { return !of_worker[p].residual.empty(); });
        mine[p].residual = any ? std::vector<float>(means[p].begin(), means[p].end()) : std::vector<float>();
        if (were_two_levels || two_levels()) forget(mine[p]);
      }
      reducers_[w]->load_state(mine);
    }
  }

  std::mt19937_64 random_;
  const TrialSpec* spec_ = nullptr;
  int workers_ = 1;
  std::vector<HostGroups> groups_;  // by worker
  std::unique_ptr<Layout> layout_;
  std::vector<ElementType> types_;
  ReducerOptions options_;
  bool explicit_steps_ = true;
  std::vector<Bucket> buckets_;
  std::vector<std::unique_ptr<Reducer>> reducers_;
  double loss_scale_ = 1;
  std::vector<std::vector<TypedGradient>> gradients_, inputs_;  // [worker][parameter]
  StepTrialResult result_;
};

}  // namespace

StepTrialResult run_step_trial(std::uint64_t seed) {
  StepTrial trial(seed);
  return trial.run();
}

}  // namespace thinwire::testing
