#include "reducer/bucket_reduction.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "compressors/shared/message.h"
#include "kernels/statistics.h"
#include "reducer/staging.h"

namespace thinwire {
namespace {

ParameterSlot& slot_of(const BucketReduction& bucket, std::uint32_t entry) {
  return bucket.slots[bucket.lane.gradients[entry].parameter];
}

const Parameter& definition_of(const BucketReduction& bucket, std::uint32_t entry) {
  return bucket.layout.parameters()[bucket.lane.gradients[entry].parameter];
}

// A parameter as it will be sent, gradient plus residual, without changing either.
class UnopenedParameter : public ParameterView {
 public:
  UnopenedParameter(const Parameter& definition, const ParameterGradient& gradient, const ParameterSlot& slot, float scale)
      : definition_(definition), gradient_(gradient), slot_(slot), scale_(scale) {}

  const Parameter& definition() const override { return definition_; }
  CompressorMemory& memory() const override { return *slot_.memory; }
  void read(std::uint64_t first, std::span<float> values) const override {
    load(gradient_, first, values);
    if (slot_.residual.empty()) return;
    const float* const residual = slot_.residual.data() + first;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale_ * values[i] + residual[i];
  }

 private:
  const Parameter& definition_;
  const ParameterGradient& gradient_;
  const ParameterSlot& slot_;
  float scale_;
};

float gradient_scale(const BucketReduction& bucket, const ChosenCompressor& chosen) {
  return chosen.feedback ? static_cast<float>(1.0 / bucket.loss_scale) : 1.0f;
}

// Residuals and memories come into being at a parameter's first reduction.
void provide_memory(const BucketReduction& bucket, const PreparedGroup& group) {
  for (const std::uint32_t entry : group.entries) {
    ParameterSlot& slot = slot_of(bucket, entry);
    const Parameter& definition = definition_of(bucket, entry);
    if (group.chosen->feedback) slot.residual.resize(definition.elements());
    if (!slot.memory) slot.memory = group.chosen->compressor->make_memory(definition);
    if (slot.memory) slot.memory->begin_step();
  }
}

Exchange prepare_group(BucketReduction bucket, const PreparedGroup& group) {
  std::vector<UnopenedParameter> parameters;
  for (const std::uint32_t entry : group.entries)
    if (group.chosen->compressor->needs_preparation(slot_of(bucket, entry).steps))
      parameters.emplace_back(definition_of(bucket, entry), bucket.lane.gradients[entry], slot_of(bucket, entry),
                              gradient_scale(bucket, *group.chosen));
  if (parameters.empty()) co_return;
  std::vector<const ParameterView*> views;
  for (const UnopenedParameter& parameter : parameters) views.push_back(&parameter);

  bucket.lane.scratch.reset();
  bucket.context.purpose = Purpose::kSetup;
  bucket.context.enter(Phase::kSetup);
  Exchange preparation = group.chosen->compressor->prepare(views, bucket.context);
  co_await preparation;
  bucket.context.purpose = Purpose::kPayload;
}

// Whether everything beyond the first message, which finds out for itself, is finite on this worker.
bool rest_is_finite(const BucketReduction& bucket) {
  ThreadPool& threads = bucket.context.threads();
  bucket.lane.scratch.reset();
  const auto buffers = bucket.lane.scratch.take<float>(threads.threads() * kChunkElements);
  std::atomic<bool> finite = true;
  for (std::size_t m = 1; m < bucket.plan.messages.size(); ++m) {
    const MessagePlan& plan = bucket.plan.messages[m];
    threads.for_each(plan.chunks.size(), plan.elements, [&](std::size_t i, std::size_t thread) {
      const Chunk& chunk = plan.chunks[i];
      const auto buffer = buffers.subspan(thread * kChunkElements, kChunkElements);
      if (finite && !is_finite(bucket.lane.gradients[chunk.entry], chunk.first, chunk.elements, buffer)) finite = false;
    });
  }
  return finite;
}

// A message's pieces, from loading to the commit. Until they are committed, destroying it puts residuals back.
class Message {
 public:
  Message(const BucketReduction& bucket, const MessagePlan& plan) : bucket_(bucket), plan_(plan) {
    bucket_.lane.scratch.reset();
    bucket_.lane.pieces.clear();
    measured_ = bucket_.measure_every > 0 && !plan.chunks.empty() &&
                slot_of(bucket_, plan.chunks.front().entry).steps % static_cast<std::uint64_t>(bucket_.measure_every) == 0;
    for (const Chunk& chunk : plan.chunks) add_piece(chunk);
    work_ = {bucket_.lane.pieces, plan.elements, plan.chosen->feedback, measured_, gradient_scale(bucket_, *plan.chosen)};
    if (staged_) load_pieces();
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  ~Message() {
    for (Piece& piece : work_.pieces)
      if (piece.stage == Piece::Stage::kOpen) put_back(piece);
  }

  Work& work() { return work_; }

  void commit() {
    if (measured_) count_error();
    const bool scaled = work_.gradient_scale != 1;
    if (!scaled && !staged_) return;
    for_each_piece(work_, bucket_.context, [&](const Piece& piece, std::size_t i) {
      if (scaled) kernels::multiply(piece.mean(), 1.0f / work_.gradient_scale);
      if (is_staged(gradient_of(i))) store(piece.mean(), gradient_of(i), piece.first);
    });
  }

 private:
  static bool is_staged(const ParameterGradient& gradient) { return gradient.type != ElementType::kFloat32; }

  const ParameterGradient& gradient_of(std::size_t piece) const { return bucket_.lane.gradients[plan_.chunks[piece].entry]; }

  void load_pieces() {
    for_each_piece(work_, bucket_.context, [&](const Piece& piece, std::size_t i) {
      if (is_staged(gradient_of(i))) load(gradient_of(i), piece.first, piece.gradient);
    });
  }

  void add_piece(const Chunk& chunk) {
    const ParameterGradient& gradient = bucket_.lane.gradients[chunk.entry];
    ParameterSlot& slot = slot_of(bucket_, chunk.entry);
    std::vector<Piece>& pieces = bucket_.lane.pieces;
    Piece piece;
    piece.parameter = gradient.parameter;
    piece.definition = &definition_of(bucket_, chunk.entry);
    piece.step = slot.steps;
    piece.first = chunk.first;
    piece.chunk = chunk.number;
    piece.offset = pieces.empty() ? 0 : pieces.back().offset + pieces.back().gradient.size();
    piece.gradient = room_for_floats(gradient, chunk.first, chunk.elements, bucket_.lane.scratch);
    piece.residual = residual_of(slot, chunk);
    piece.memory = slot.memory.get();
    piece.random = RandomSequence::of(bucket_.context.seed(), slot.steps, gradient.parameter, chunk.first, bucket_.context.rank());
    pieces.push_back(piece);
    staged_ = staged_ || is_staged(gradient);
  }

  // To measure without feedback a residual is needed for the time being.
  std::span<float> residual_of(ParameterSlot& slot, const Chunk& chunk) {
    if (plan_.chosen->feedback) return std::span(slot.residual).subspan(chunk.first, chunk.elements);
    if (!measured_) return {};
    const auto residual = bucket_.lane.scratch.take<float>(chunk.elements);
    std::fill(residual.begin(), residual.end(), 0.0f);
    return residual;
  }

  // Figures that are not finite are left out: they would spoil the sums for ever.
  void count_error() {
    const double error = work_.first_error ? *work_.first_error : residual_energy(work_, bucket_.context);
    double energy = 0;
    for (const Piece& piece : work_.pieces) energy += static_cast<double>(piece.energy);
    if (!std::isfinite(energy) || !std::isfinite(error)) return;
    bucket_.counters.measured_energy += energy;
    bucket_.counters.error_energy += error;
  }

  const BucketReduction& bucket_;
  const MessagePlan& plan_;
  bool measured_ = false;
  bool staged_ = false;  // some gradient is not float32, and its values are in scratch memory
  Work work_;
};

bool any_feedback(const BucketPlan& plan) {
  return std::any_of(plan.messages.begin(), plan.messages.end(),
                     [](const MessagePlan& message) { return message.chosen->feedback; });
}

// After a message in which finite values overflowed, those before it are committed and their means will not be used: they
// go to the residuals, so that the sum over the workers loses nothing.
void return_means(const BucketReduction& bucket, std::span<const MessagePlan> committed) {
  bucket.lane.scratch.reset();
  const auto buffer = bucket.lane.scratch.take<float>(kChunkElements);
  for (const MessagePlan& message : committed) {
    if (!message.chosen->feedback) continue;
    const float scale = gradient_scale(bucket, *message.chosen);
    for (const Chunk& chunk : message.chunks)
      for (std::uint64_t done = 0; done < chunk.elements; done += buffer.size()) {
        const auto means = buffer.first(std::min<std::uint64_t>(buffer.size(), chunk.elements - done));
        load(bucket.lane.gradients[chunk.entry], chunk.first + done, means);
        float* const residual = slot_of(bucket, chunk.entry).residual.data() + chunk.first + done;
        for (std::size_t i = 0; i < means.size(); ++i)
          if (std::isfinite(means[i])) residual[i] += scale * means[i];
      }
  }
}

void fill_with_nan(const BucketReduction& bucket) {
  for (const ParameterGradient& gradient : bucket.lane.gradients)
    fill(gradient, std::numeric_limits<float>::quiet_NaN());
  ++bucket.counters.non_finite;
}

void commit_step(const BucketReduction& bucket) {
  for (const ParameterGradient& gradient : bucket.lane.gradients) {
    ParameterSlot& slot = bucket.slots[gradient.parameter];
    ++slot.steps;
    if (slot.memory) slot.memory->commit_step();
  }
}

void count_elements(const BucketReduction& bucket) {
  for (const MessagePlan& message : bucket.plan.messages) {
    bucket.counters.elements += message.elements;
    if (message.chosen->info->name != "none") bucket.counters.compressed_elements += message.elements;
  }
  ++bucket.counters.reductions;
}

}  // namespace

Exchange reduce_bucket(BucketReduction bucket) {
  for (const PreparedGroup& group : bucket.plan.groups) {
    provide_memory(bucket, group);
    Exchange preparation = prepare_group(bucket, group);
    co_await preparation;
  }
  bucket.context.enter(Phase::kEncode);
  bucket.context.flag_needed = any_feedback(bucket.plan);
  bucket.context.finite = !bucket.context.flag_needed || rest_is_finite(bucket);
  std::size_t committed = 0;
  for (const MessagePlan& plan : bucket.plan.messages) {
    bucket.context.enter(Phase::kEncode);
    Message message(bucket, plan);
    const double sent_before = bucket.counters.traffic_bytes;
    Exchange exchange = plan.chosen->compressor->exchange(message.work(), bucket.context);
    co_await exchange;
    if (plan.chosen->info->unit == Unit::kRow) {
      bucket.counters.row_traffic_bytes += bucket.counters.traffic_bytes - sent_before;
      bucket.counters.row_elements += plan.elements;
    }
    bucket.counters.fallbacks += message.work().fell_back ? 1 : 0;
    if (bucket.context.any_non_finite) break;
    message.commit();
    ++committed;
    bucket.context.finite = true;
  }
  count_elements(bucket);
  if (bucket.context.any_non_finite) {
    return_means(bucket, std::span(bucket.plan.messages).first(committed));
    fill_with_nan(bucket);
  } else {
    commit_step(bucket);
  }
}

}  // namespace thinwire
