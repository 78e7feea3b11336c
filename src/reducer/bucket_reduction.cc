#include "reducer/bucket_reduction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "compressors/shared/message.h"

namespace thinwire {
namespace {

ParameterSlot& slot_of(const BucketReduction& bucket, std::uint32_t entry) {
  return bucket.ground.slots[bucket.lane.gradients[entry].parameter];
}

const Parameter& definition_of(const BucketReduction& bucket, std::uint32_t entry) {
  return bucket.ground.layout.parameters()[bucket.lane.gradients[entry].parameter];
}

GradientSpan gradient_of(const BucketReduction& bucket, std::uint32_t entry) {
  return {bucket.lane.gradients[entry].type, bucket.lane.gradients[entry].data};
}

// A parameter as it will be sent, gradient plus residual.
class WholeParameter : public ParameterView {
 public:
  WholeParameter(const Parameter& definition, const GradientSpan& gradient, const ParameterSlot& slot, float scale)
      : definition_(definition), gradient_(gradient), slot_(slot), scale_(scale) {}

  const Parameter& definition() const override { return definition_; }
  CompressorMemory& memory() const override { return *slot_.memory; }
  void read(std::uint64_t first, std::span<float> values) const override {
    const auto residual = slot_.residual.empty() ? std::span<const float>() : std::span(slot_.residual).subspan(first, values.size());
    read_values(gradient_.part(first, values.size()), scale_, residual, values);
  }

 private:
  const Parameter& definition_;
  GradientSpan gradient_;
  const ParameterSlot& slot_;
  float scale_;
};

// Of 1, the mean stays where it was decoded.
float gradient_scale(const BucketReduction& bucket, const ChosenCompressor& chosen) {
  return chosen.feedback || chosen.depends_on_scale ? static_cast<float>(1.0 / bucket.loss_scale) : 1.0f;
}

// Residuals and memories come into being at a parameter's first reduction.
void provide_memory(const BucketReduction& bucket, const PreparedGroup& group) {
  for (const std::uint32_t entry : group.entries) {
    ParameterSlot& slot = slot_of(bucket, entry);
    const Parameter& definition = definition_of(bucket, entry);
    if (group.chosen->feedback) slot.residual.resize(definition.elements());
    if (bucket.ground.keeps_old_residual(*group.chosen)) slot.next.resize(definition.elements());
    if (!slot.memory) slot.memory = group.chosen->compressor->make_memory(definition, group.chosen->chunk);
    if (slot.memory) slot.memory->begin_step();
  }
}

Exchange prepare_group(BucketReduction bucket, const PreparedGroup& group) {
  std::vector<WholeParameter> parameters;
  for (const std::uint32_t entry : group.entries)
    if (group.chosen->compressor->needs_preparation(slot_of(bucket, entry).steps))
      parameters.emplace_back(definition_of(bucket, entry), gradient_of(bucket, entry), slot_of(bucket, entry),
                              gradient_scale(bucket, *group.chosen));
  if (parameters.empty()) co_return;
  std::vector<const ParameterView*> views;
  for (const WholeParameter& parameter : parameters) views.push_back(&parameter);

  bucket.lane.scratch.reset();
  bucket.context.purpose = Purpose::kSetup;
  bucket.context.enter(Phase::kSetup);
  Exchange preparation = group.chosen->compressor->prepare(views, bucket.context);
  co_await preparation;
  bucket.context.purpose = Purpose::kPayload;
}

// The largest mean that can be stored as a gradient of that type.
double largest_of(ElementType type) {
  switch (type) {
    case ElementType::kBfloat16:
      return 3.3895313892515355e38;
    case ElementType::kFloat16:
      return 65504;
    default:
      return static_cast<double>(std::numeric_limits<float>::max());
  }
}

// A bucket's messages, from their pieces to what they counted. They share the lane's scratch, and their exchanges end with this.
class Messages {
 public:
  explicit Messages(const BucketReduction& bucket) : bucket_(bucket) {
    Lane& lane = bucket.lane;
    lane.scratch.reset();
    lane.pieces.clear();
    lane.works.clear();
    std::size_t pieces = 0;
    for (const MessagePlan& plan : bucket.plan.messages) pieces += plan.chunks.size();
    lane.pieces.reserve(pieces);
    lane.works.reserve(bucket.plan.messages.size());
    lane.exchanges.reserve(bucket.plan.messages.size());
    for (const MessagePlan& plan : bucket.plan.messages) lane.works.push_back(work_of(plan));
  }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;
  ~Messages() { bucket_.lane.exchanges.clear(); }

  Exchange& start(std::size_t message) {
    const MessagePlan& plan = bucket_.plan.messages[message];
    sent_before_ = bucket_.counters.traffic_bytes;
    return bucket_.lane.exchanges.emplace_back(plan.chosen->compressor->exchange(bucket_.lane.works[message], bucket_.context));
  }

  // All its rounds are over.
  void count_rounds(std::size_t message) {
    const Report& report = bucket_.lane.works[message].report;
    if (report.row_elements > 0) bucket_.counters.row_traffic_bytes += bucket_.counters.traffic_bytes - sent_before_;
    bucket_.counters.row_elements += report.row_elements;
    bucket_.counters.fallbacks += report.fell_back ? 1 : 0;
  }

  void commit() {
    bucket_.context.enter(Phase::kDecode);
    for (Exchange& exchange : bucket_.lane.exchanges) exchange.next();
    for (const Work& work : bucket_.lane.works) count_error(work.report);
  }

 private:
  Work work_of(const MessagePlan& plan) {
    Work work;
    work.elements = plan.elements;
    work.feedback = plan.chosen->feedback;
    work.direction = bucket_.ground.direction;
    work.gradient_scale = gradient_scale(bucket_, *plan.chosen);
    work.residual_decay = plan.chosen->compressor->residual_decay();
    double largest = largest_of(ElementType::kFloat32);
    const std::size_t first = bucket_.lane.pieces.size();
    for (const Chunk& chunk : plan.chunks) {
      largest = std::min(largest, largest_of(bucket_.lane.gradients[chunk.entry].type) * static_cast<double>(work.gradient_scale));
      add_piece(chunk, first, *plan.chosen);
    }
    work.largest_mean = static_cast<float>(largest);
    work.pieces = std::span(bucket_.lane.pieces).subspan(first);
    const auto every = static_cast<std::uint64_t>(bucket_.measure_every);
    work.measured = every > 0 && !work.pieces.empty() && work.pieces.front().step % every == 0;
    if (work.measured) {
      work.report.energies = zeros(plan.chunks.size());
      work.report.errors = zeros(plan.chunks.size());
    }
    return work;
  }

  std::span<double> zeros(std::size_t count) const {
    const auto numbers = bucket_.lane.scratch.take<double>(count);
    std::ranges::fill(numbers, 0.0);
    return numbers;
  }

  // first: the message's first piece.
  void add_piece(const Chunk& chunk, std::size_t first, const ChosenCompressor& chosen) {
    ParameterSlot& slot = slot_of(bucket_, chunk.entry);
    std::vector<Piece>& pieces = bucket_.lane.pieces;
    const Context& context = bucket_.context;
    Piece piece;
    piece.parameter = bucket_.lane.gradients[chunk.entry].parameter;
    piece.definition = &definition_of(bucket_, chunk.entry);
    piece.step = slot.steps;
    piece.first = chunk.first;
    const auto workers = static_cast<std::uint64_t>(context.world_size());
    const auto& owners = bucket_.ground.owners;
    piece.owner = owners.empty() ? static_cast<std::uint32_t>(chunk.number % workers) : owners[piece.parameter];
    piece.offset = pieces.size() == first ? 0 : pieces.back().offset + pieces.back().elements();
    piece.gradient = gradient_of(bucket_, chunk.entry).part(chunk.first, chunk.elements);
    if (chosen.feedback) {
      piece.residual = std::span(slot.residual).subspan(chunk.first, chunk.elements);
      piece.next_residual = std::span(bucket_.ground.keeps_old_residual(chosen) ? slot.next : slot.residual)
                                .subspan(chunk.first, chunk.elements);
    }
    piece.memory = slot.memory.get();
    piece.random = RandomSequence::of(context.seed(), slot.steps, piece.parameter, chunk.first, context.rank());
    pieces.push_back(piece);
  }

  // Figures that are not finite are left out: they would spoil the sums for ever.
  void count_error(const Report& report) {
    const double energy = std::accumulate(report.energies.begin(), report.energies.end(), 0.0);
    const double error = std::accumulate(report.errors.begin(), report.errors.end(), 0.0);
    if (!std::isfinite(energy) || !std::isfinite(error)) return;
    bucket_.counters.measured_energy += energy;
    bucket_.counters.error_energy += error;
  }

  const BucketReduction& bucket_;
  double sent_before_ = 0;
};

bool is_uncompressed(const MessagePlan& message) { return message.chosen->info->name == "none"; }

void count_elements(const BucketReduction& bucket) {
  for (const MessagePlan& message : bucket.plan.messages) {
    bucket.counters.elements += message.elements;
    if (!is_uncompressed(message)) bucket.counters.compressed_elements += message.elements;
  }
  ++bucket.counters.reductions;
}

// All rounds of a message.
Exchange perform(Messages& messages, std::size_t m, Context& context) {
  context.enter(Phase::kEncode);
  Exchange& message = messages.start(m);
  for (const Collective* asked = message.next(); asked && !CommitPoint::is(asked); asked = message.next()) {
    Await round(*asked);
    co_await round;
  }
  messages.count_rounds(m);
}

// Uncompressed floats that are summed wait for another message to take them along, and travel alone if none does.
Exchange perform_all(const BucketReduction& bucket, Messages& messages) {
  const std::vector<MessagePlan>& plans = bucket.plan.messages;
  const auto waiting = static_cast<std::size_t>(std::ranges::find_if(plans, is_uncompressed) - plans.begin());
  Context& context = bucket.context;
  Exchange* uncompressed = nullptr;
  const Collective* sum = nullptr;
  if (waiting < plans.size() && plans.size() > 1 && bucket.ground.owners.empty()) {
    context.enter(Phase::kEncode);
    uncompressed = &messages.start(waiting);
    sum = uncompressed->next();
    context.riders = {reinterpret_cast<float*>(sum->data.data()), sum->data.size() / sizeof(float)};
  }
  for (std::size_t m = 0; m < plans.size() && !context.any_non_finite; ++m) {
    if (uncompressed && m == waiting) continue;
    Exchange rounds = perform(messages, m, context);
    co_await rounds;
  }
  if (!uncompressed || context.any_non_finite) co_return;
  if (!context.riders.empty()) {
    context.riders = {};
    Await round(*sum);
    co_await round;
  }
  uncompressed->next();
}

}  // namespace

Exchange reduce_bucket(BucketReduction bucket) {
  for (const PreparedGroup& group : bucket.plan.groups) {
    provide_memory(bucket, group);
    Exchange preparation = prepare_group(bucket, group);
    co_await preparation;
  }
  Messages messages(bucket);
  Exchange rounds = perform_all(bucket, messages);
  co_await rounds;
  count_elements(bucket);
  if (bucket.context.any_non_finite || bucket.context.own_mean_lost) {
    for (const ParameterGradient& gradient : bucket.lane.gradients) fill_with_nan(gradient, bucket.context.threads());
    ++bucket.counters.non_finite;
    bucket.step.fail();
  } else {
    messages.commit();
    bucket.step.add(bucket.lane.gradients, bucket.loss_scale);
  }
}

}  // namespace thinwire
