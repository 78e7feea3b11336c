#include "thinwire/reducer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "core/fingerprint.h"
#include "core/thread_pool.h"
#include "kernels/statistics.h"
#include "reducer/bucket_reduction.h"
#include "reducer/link_probe.h"
#include "reducer/plan.h"
#include "reducer/policy.h"
#include "reducer/reduction.h"
#include "reducer/two_levels.h"
#include "thinwire/errors.h"
#include "thinwire/version.h"

namespace thinwire {
namespace {

void check(const ReducerOptions& options) {
  if (options.world_size < 1)
    throw ArgumentError("world_size is " + std::to_string(options.world_size) + "; it must be at least 1");
  if (options.rank < 0 || options.rank >= options.world_size)
    throw ArgumentError("rank is " + std::to_string(options.rank) + "; with " + std::to_string(options.world_size) +
                        " workers it must be from 0 to " + std::to_string(options.world_size - 1));
  if (options.lanes < 1) throw ArgumentError("lanes is " + std::to_string(options.lanes) + "; it must be at least 1");
  const auto is_sensible = [](double figure) { return std::isfinite(figure) && figure >= 0; };
  if (!is_sensible(options.link.bytes_per_second) || !is_sensible(options.link.round_seconds))
    throw ArgumentError("link has " + std::to_string(options.link.bytes_per_second) + " bytes a second and " +
                        std::to_string(options.link.round_seconds) + " seconds a round; neither may be negative or not finite");
  if (options.threads < 1 || options.threads > kMostThreads)
    throw ArgumentError("threads is " + std::to_string(options.threads) + "; it must be from 1 to " +
                        std::to_string(kMostThreads));
}

void check_owners(const Layout& layout, const ReducerOptions& options, const Policy& policy, bool two_levels) {
  if (options.owners.empty() && options.from_owners) throw ArgumentError("from_owners without owners: say of each parameter which worker has it");
  if (options.owners.empty()) return;
  if (two_levels)
    throw ArgumentError("owners with hosts that several workers share: on two levels means go to all workers; leave hosts empty");
  if (options.owners.size() != layout.parameters().size())
    throw ArgumentError("there are " + std::to_string(options.owners.size()) + " owners and " + std::to_string(layout.parameters().size()) +
                        " parameters; each has one");
  if (!options.keep_old_residuals && !options.from_owners)
    throw ArgumentError("owners without keep_old_residuals: a failed step could not give back means that only their owners have; set it");
  for (std::size_t i = 0; i < options.owners.size(); ++i) {
    if (options.owners[i] >= static_cast<std::uint32_t>(options.world_size))
      throw ArgumentError("parameter " + std::to_string(i) + " has owner " + std::to_string(options.owners[i]) + "; with " +
                          std::to_string(options.world_size) + " workers it must be from 0 to " +
                          std::to_string(options.world_size - 1));
    if (!policy.compressor_of(i).compressor->serves_owners())
      throw ArgumentError("parameter '" + layout.parameters()[i].name + "' has an owner, and '" + policy.compressor_of(i).canonical +
                          "' averages for all workers alike; take one whose codes go from worker to worker: none, bf16, fp16, casq, topk, or "
                          "another that has reduce=scatter");
  }
}

Direction direction_of(const ReducerOptions& options) {
  if (options.owners.empty()) return Direction::kToAll;
  return options.from_owners ? Direction::kFromOwners : Direction::kToOwners;
}

std::string quoted(const std::string& name) { return "parameter '" + name + "'"; }

std::string text_of_hosts(const HostGroups& groups, const std::vector<int>& hosts) {
  if (!groups.two_levels()) return "";
  std::string text = ", hosts of the workers";
  for (const int host : hosts) text.append(" ").append(std::to_string(host));
  return text;
}

std::string text_of(const Link& link) {
  if (!link.is_known()) return "link unknown";
  return "link of " + std::to_string(link.bytes_per_second) + " bytes a second and " + std::to_string(1e6 * link.round_seconds) +
         " us a round";
}

std::string text_of_owners(const ReducerOptions& options) {
  if (options.owners.empty()) return "";
  std::string text = options.from_owners ? ", from owners" : ", owners";
  for (const std::uint32_t owner : options.owners) text.append(" ").append(std::to_string(owner));
  return text;
}

}  // namespace

struct Reducer::Impl {
  Impl(Layout the_layout, ReducerOptions the_options)
      : layout(std::move(the_layout)),
        options((check(the_options), std::move(the_options))),
        policy(layout, options),
        groups(options.hosts, options.rank, options.world_size),
        parts(groups.two_levels() ? divide_layout(layout, policy, groups.parts()) : HostParts()),
        own_layout(make_own_layout()),
        own_values(groups.two_levels() ? own_layout.elements() : 0),
        slots(layout.parameters().size()),
        threads(options.threads),
        lanes(static_cast<std::size_t>(options.lanes)),
        link(options.link),
        ground{own_layout, policy, slots, threads, options.keep_old_residuals, options.owners, direction_of(options)} {
    check_owners(layout, options, policy, groups.two_levels());
  }

  void check_gradients(std::span<const ParameterGradient> gradients) const;
  const BucketPlan& plan_of(const std::vector<std::uint32_t>& parameters);
  double plain_traffic(std::span<const ParameterGradient> gradients) const;
  void check_state(const ParameterState& state, std::size_t index) const;
  Lane& free_lane(int lane);
  bool any_in_flight() const;
  void check_at_rest(const char* what) const;
  ParameterRange own_range(std::size_t parameter) const;
  Layout make_own_layout() const;
  Membership membership() const;
  Reduction::State* new_state(Lane& lane, int number);
  void take_own_parts(Lane& lane);

  const Layout layout;
  const ReducerOptions options;
  const Policy policy;
  const HostGroups groups;
  const HostParts parts;         // on two levels
  const Layout own_layout;       // of what this worker compresses
  std::vector<float> own_values;  // on two levels, those of a step
  std::vector<ParameterSlot> slots;
  ThreadPool threads;
  std::vector<Lane> lanes;
  Link link;
  const StepGround ground;
  Step step;  // between begin_step() and end_step()
  bool in_step = false;
  CounterTotal counters;
  std::mutex plans_mutex;
  std::map<std::vector<std::uint32_t>, BucketPlan> plans;  // by the bucket's parameters
};

void Reducer::Impl::check_gradients(std::span<const ParameterGradient> gradients) const {
  for (const ParameterGradient& gradient : gradients) {
    if (gradient.parameter >= slots.size())
      throw ArgumentError("there is no parameter " + std::to_string(gradient.parameter) + "; the layout has " +
                          std::to_string(slots.size()));
    const Parameter& parameter = layout.parameters()[gradient.parameter];
    if (gradient.type != ElementType::kFloat32 && gradient.type != ElementType::kBfloat16 &&
        gradient.type != ElementType::kFloat16)
      throw ArgumentError("the gradient of " + quoted(parameter.name) + " must be float32, bfloat16 or float16");
    const std::uint64_t bytes = parameter.elements() * element_bytes(gradient.type);
    if (gradient.data.size() != bytes)
      throw ArgumentError("the gradient of " + quoted(parameter.name) + " has " + std::to_string(gradient.data.size()) +
                          " bytes; its " + std::to_string(parameter.elements()) + " elements take " + std::to_string(bytes));
  }
}

// Plans are never removed, so references to them stay good.
const BucketPlan& Reducer::Impl::plan_of(const std::vector<std::uint32_t>& parameters) {
  const std::lock_guard lock(plans_mutex);
  const auto found = plans.find(parameters);
  if (found != plans.end()) return found->second;
  std::vector<std::uint32_t> sorted = parameters;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    throw ArgumentError("a parameter occurs twice in one reduction");
  return plans.emplace(parameters, plan_bucket(own_layout, policy, parameters, options.owners)).first->second;
}

double Reducer::Impl::plain_traffic(std::span<const ParameterGradient> gradients) const {
  double bytes = 0;
  for (const ParameterGradient& gradient : gradients)
    bytes += traffic_bytes({.kind = CollectiveKind::kSum, .data = gradient.data, .result = {}}, membership().world_size);
  return options.owners.empty() ? bytes : bytes / 2;  // a reduce-scatter is the first half
}

Reducer::Reducer(Layout layout, ReducerOptions options)
    : impl_(std::make_unique<Impl>(std::move(layout), std::move(options))) {}

Reducer::~Reducer() = default;

Lane& Reducer::Impl::free_lane(int lane) {
  if (lane < 0 || lane >= options.lanes)
    throw ArgumentError("there is no lane " + std::to_string(lane) + "; this reducer has " + std::to_string(options.lanes));
  Lane& memory = lanes[static_cast<std::size_t>(lane)];
  if (memory.busy)
    throw ArgumentError("lane " + std::to_string(lane) + " has a reduction in flight; finish or destroy it first");
  return memory;
}

// A worker beyond the last part has nothing of any parameter.
ParameterRange Reducer::Impl::own_range(std::size_t parameter) const {
  if (!groups.two_levels()) return {0, layout.parameters()[parameter].elements()};
  const auto own = static_cast<std::size_t>(groups.part());
  return own < parts.size() ? parts[own][parameter] : ParameterRange();
}

Layout Reducer::Impl::make_own_layout() const {
  if (!groups.two_levels()) return layout;
  std::vector<ParameterRange> ranges;
  for (std::size_t i = 0; i < layout.parameters().size(); ++i) ranges.push_back(own_range(i));
  return layout_of_part(layout, ranges);
}

// Among those with whom this worker exchanges what is compressed. Parts draw random numbers of their own.
Membership Reducer::Impl::membership() const {
  if (!groups.two_levels()) return {Group::kAll, options.rank, options.world_size, options.seed};
  Fingerprint seed;
  seed.add(options.seed);
  seed.add(static_cast<std::uint64_t>(groups.part()));
  return {Group::kBetweenHosts, groups.place(Group::kBetweenHosts), groups.size(Group::kBetweenHosts), seed.value()};
}

// What the lane's reduction is to compress of lane.whole.
void Reducer::Impl::take_own_parts(Lane& lane) {
  lane.gradients.clear();
  for (const ParameterGradient& gradient : lane.whole) {
    const auto values = std::span(own_values).subspan(own_layout.offset(gradient.parameter),
                                                      own_layout.parameters()[gradient.parameter].elements());
    lane.gradients.push_back({gradient.parameter, ElementType::kFloat32, std::as_writable_bytes(values)});
  }
}

Reduction::State* Reducer::Impl::new_state(Lane& lane, int number) {
  Context context(membership(), lane.scratch, threads);
  context.link = link;
  return new Reduction::State(lane, ground, counters, context, options.trace, number, groups);
}

Reduction Reducer::reduce(std::span<const ParameterGradient> gradients, int lane, double loss_scale) {
  if (!(loss_scale > 1e-30 && loss_scale < 1e30))
    throw ArgumentError("loss_scale is " + std::to_string(loss_scale) + "; it must be between 1e-30 and 1e30");
  impl_->check_gradients(gradients);
  Lane& memory = impl_->free_lane(lane);
  const bool two_levels = impl_->groups.two_levels();
  (two_levels ? memory.whole : memory.gradients).assign(gradients.begin(), gradients.end());
  if (two_levels) impl_->take_own_parts(memory);
  memory.parameters.clear();
  for (const ParameterGradient& gradient : gradients) memory.parameters.push_back(gradient.parameter);
  const BucketPlan& plan = impl_->plan_of(memory.parameters);

  std::unique_ptr<Reduction::State> state(impl_->new_state(memory, lane));
  state->counters.plain_traffic_bytes = impl_->plain_traffic(memory.gradients);
  Step& step = impl_->in_step ? impl_->step : memory.own_step;
  step.enter(memory.gradients, impl_->in_step, impl_->ground);
  state->step = &step;
  const BucketReduction bucket{impl_->ground, plan, memory, step, state->context, state->counters, loss_scale,
                               impl_->options.measure_every};
  state->exchange = two_levels ? reduce_on_two_levels({impl_->groups, impl_->parts, memory, bucket, impl_->membership(),
                                                      impl_->options.host_memory})
                               : reduce_bucket(bucket);
  return Reduction(std::move(state));
}

bool Reducer::Impl::any_in_flight() const {
  return std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return lane.busy; });
}

void Reducer::begin_step() {
  if (impl_->in_step) throw ArgumentError("a step has begun already; end_step() comes first");
  if (impl_->any_in_flight()) throw ArgumentError("a step cannot begin while a reduction is in flight; finish or destroy it first");
  impl_->in_step = true;
}

bool Reducer::end_step() {
  if (!impl_->in_step) throw ArgumentError("no step has begun; begin_step() comes first");
  if (impl_->any_in_flight()) throw ArgumentError("a step cannot end while a reduction is in flight; finish or destroy it first");
  impl_->in_step = false;
  if (impl_->step.finish(impl_->ground)) return true;
  Counters failed;
  failed.failed_steps = 1;
  impl_->counters.add(failed);
  return false;
}

void Reducer::fail_step() {
  if (!impl_->in_step) throw ArgumentError("no step has begun; begin_step() comes first");
  impl_->step.fail();
}

Reduction Reducer::measure_link(int lane) {
  Lane& memory = impl_->free_lane(lane);
  std::unique_ptr<Reduction::State> state(impl_->new_state(memory, lane));
  state->exchange = probe_link(state->context, impl_->link);
  return Reduction(std::move(state));
}

const Link& Reducer::link() const { return impl_->link; }

bool Reducer::chooses_by_link() const {
  if (!impl_->options.owners.empty()) return false;
  for (std::size_t i = 0; i < impl_->slots.size(); ++i)
    if (impl_->policy.compressor_of(i).compressor->chooses_by_link()) return true;
  return false;
}

std::string Reducer::description() const {
  const ReducerOptions& options = impl_->options;
  std::string text = "thinwire " + std::string(version()) + ", compressor " + canonical_spec(options.compressor) + ", rules";
  for (const Rule& rule : options.rules) text += " " + rule.pattern + " -> " + canonical_spec(rule.spec) + ";";
  if (options.rules.empty()) text += " none;";
  return text + " small parameters " + (options.small_uncompressed ? "uncompressed" : "compressed") + ", seed " +
         std::to_string(options.seed) + ", world size " + std::to_string(options.world_size) + ", lanes " +
         std::to_string(options.lanes) + (options.keep_old_residuals ? ", old residuals kept" : "") +
         text_of_hosts(impl_->groups, options.hosts) + text_of_owners(options) + ", " +
         text_of(options.link) + ", layout of " + std::to_string(impl_->slots.size()) + " parameters, " +
         std::to_string(impl_->layout.elements()) + " elements, fingerprint " + std::to_string(impl_->layout.fingerprint());
}

std::uint64_t Reducer::fingerprint() const {
  Fingerprint print;
  print.add(description());
  return print.value();
}

const Layout& Reducer::layout() const { return impl_->layout; }

const std::string& Reducer::compressor_of(std::size_t index) const { return impl_->policy.compressor_of(index).canonical; }

bool Reducer::keeps_residual(std::size_t index) const { return impl_->policy.compressor_of(index).feedback; }

ParameterRange Reducer::part(std::size_t index) const {
  return impl_->own_range(index);
}

std::span<const int> Reducer::hosts() const {
  return impl_->groups.two_levels() ? std::span(impl_->options.hosts) : std::span<const int>();
}

Counters Reducer::counters() const { return impl_->counters.get(); }

void Reducer::Impl::check_at_rest(const char* what) const {
  if (in_step || any_in_flight())
    throw StateError(std::string(what) + " within a step: end_step() comes first, and reductions must have been finished or destroyed");
}

std::vector<ParameterState> Reducer::state() const {
  impl_->check_at_rest("a state cannot be saved");
  std::vector<ParameterState> states;
  for (std::size_t i = 0; i < impl_->slots.size(); ++i) {
    const ParameterSlot& slot = impl_->slots[i];
    states.push_back({impl_->layout.parameters()[i].name, slot.steps, {slot.residual.begin(), slot.residual.end()},
                      slot.memory ? slot.memory->save() : std::vector<std::byte>()});
  }
  return states;
}

void Reducer::Impl::check_state(const ParameterState& state, std::size_t index) const {
  const Parameter& parameter = layout.parameters()[index];
  const std::uint64_t own = own_layout.parameters()[index].elements();
  if (state.name != parameter.name)
    throw StateError("the saved state's parameter " + std::to_string(index) + " is '" + state.name + "', this reducer's is '" +
                     parameter.name + "'");
  if (!state.residual.empty() && !policy.compressor_of(index).feedback)
    throw StateError("the saved state has a residual for " + quoted(parameter.name) + ", but " +
                     policy.compressor_of(index).canonical + " keeps none");
  if (!state.residual.empty() && state.residual.size() != own && state.residual.size() != parameter.elements())
    throw StateError("the saved residual of " + quoted(parameter.name) + " has " + std::to_string(state.residual.size()) +
                     " elements; the parameter has " + std::to_string(parameter.elements()) +
                     (own == parameter.elements() ? "" : ", of which this worker compresses " + std::to_string(own)));
  if (!kernels::scan(state.residual).finite)
    throw StateError("the saved residual of " + quoted(parameter.name) + " holds a NaN or an infinity, which would never go away");
}

void Reducer::load_state(std::span<const ParameterState> states) {
  impl_->check_at_rest("a state cannot be loaded");
  if (states.size() != impl_->slots.size())
    throw StateError("the saved state has " + std::to_string(states.size()) + " parameters; this reducer has " +
                     std::to_string(impl_->slots.size()));
  std::vector<ParameterSlot> loaded(states.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    impl_->check_state(states[i], i);
    loaded[i].steps = states[i].steps;
    const ParameterRange part = impl_->own_range(i);
    std::span<const float> residual = states[i].residual;
    if (residual.size() > part.elements) residual = residual.subspan(part.first, part.elements);
    loaded[i].residual.assign(residual.begin(), residual.end());
    if (states[i].memory.empty()) {  // begins anew
      if (!impl_->policy.compressor_of(i).compressor->residual_is_unsent()) loaded[i].residual.clear();
      continue;
    }
    const ChosenCompressor& chosen = impl_->policy.compressor_of(i);
    loaded[i].memory = chosen.compressor->make_memory(impl_->own_layout.parameters()[i], chosen.chunk);
    if (!loaded[i].memory)
      throw StateError("the saved state has a memory for " + quoted(states[i].name) + ", but " +
                       impl_->policy.compressor_of(i).canonical + " keeps none");
    try {
      loaded[i].memory->load(states[i].memory);
    } catch (const PayloadError& error) {
      throw StateError(quoted(states[i].name) + ": " + error.what());
    }
  }
  // Element by element: steps know where the slots are.
  std::ranges::move(loaded, impl_->slots.begin());
}

}  // namespace thinwire
