#include "reducer/bucket_reduction.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compressors/message.h"
#include "kernels/statistics.h"
#include "reducer/staging.h"

namespace thinwire {
namespace {

ParameterSlot& slot_of(const BucketReduction& bucket, std::uint32_t entry) {
  return bucket.slots[bucket.lane.gradients[entry].parameter];
}

// A parameter as it will be sent, gradient plus residual, without changing either.
class UnopenedParameter : public ParameterView {
 public:
  UnopenedParameter(const ParameterGradient& gradient, const ParameterSlot& slot, float scale)
      : gradient_(gradient), slot_(slot), scale_(scale) {}

  std::uint64_t elements() const override { return gradient_.data.size() / element_bytes(gradient_.type); }
  CompressorMemory& memory() const override { return *slot_.memory; }
  void read(std::uint64_t first, std::span<float> values) const override {
    load(gradient_, first, values);
    if (slot_.residual.empty()) return;
    const float* const residual = slot_.residual.data() + first;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale_ * values[i] + residual[i];
  }

 private:
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
    const ParameterGradient& gradient = bucket.lane.gradients[entry];
    const std::uint64_t elements = gradient.data.size() / element_bytes(gradient.type);
    if (group.chosen->feedback) slot.residual.resize(elements);
    if (!slot.memory) slot.memory = group.chosen->compressor->make_memory(elements);
    if (slot.memory) slot.memory->begin_step();
  }
}

Exchange prepare_group(BucketReduction bucket, const PreparedGroup& group) {
  std::vector<UnopenedParameter> parameters;
  for (const std::uint32_t entry : group.entries)
    if (group.chosen->compressor->needs_preparation(slot_of(bucket, entry).steps))
      parameters.emplace_back(bucket.lane.gradients[entry], slot_of(bucket, entry), gradient_scale(bucket, *group.chosen));
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
  bucket.lane.scratch.reset();
  const auto buffer = bucket.lane.scratch.take<float>(kChunkElements);
  for (std::size_t m = 1; m < bucket.plan.messages.size(); ++m)
    for (const Chunk& chunk : bucket.plan.messages[m].chunks)
      if (!is_finite(bucket.lane.gradients[chunk.entry], chunk.first, chunk.elements, buffer)) return false;
  return true;
}

// A message's pieces, from loading to the commit. Until they are committed, destroying it puts residuals back.
class Message {
 public:
  Message(const BucketReduction& bucket, const MessagePlan& plan) : bucket_(bucket), plan_(plan) {
    bucket_.lane.scratch.reset();
    bucket_.lane.pieces.clear();
    measured_ = bucket_.measure_every > 0 && !plan.chunks.empty() &&
                slot_of(bucket_, plan.chunks.front().entry).steps % static_cast<std::uint64_t>(bucket_.measure_every) == 0;
    for (const Chunk& chunk : plan.chunks) bucket_.lane.pieces.push_back(piece_of(chunk));
    work_ = {bucket_.lane.pieces, plan.elements, plan.chosen->feedback, measured_, gradient_scale(bucket_, *plan.chosen)};
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
    for (std::size_t i = 0; i < work_.pieces.size(); ++i) {
      const Piece& piece = work_.pieces[i];
      if (work_.gradient_scale != 1) kernels::multiply(piece.mean(), 1.0f / work_.gradient_scale);
      const ParameterGradient& gradient = bucket_.lane.gradients[plan_.chunks[i].entry];
      if (gradient.type != ElementType::kFloat32) store(piece.mean(), gradient, piece.first);
    }
  }

 private:
  Piece piece_of(const Chunk& chunk) {
    const ParameterGradient& gradient = bucket_.lane.gradients[chunk.entry];
    ParameterSlot& slot = slot_of(bucket_, chunk.entry);
    Piece piece;
    piece.parameter = gradient.parameter;
    piece.first = chunk.first;
    piece.chunk = chunk.number;
    piece.gradient = as_floats(gradient, chunk.first, chunk.elements, bucket_.lane.scratch);
    piece.residual = residual_of(slot, chunk);
    piece.memory = slot.memory.get();
    return piece;
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
    double error = work_.first_error.value_or(0);
    if (!work_.first_error)
      for (const Piece& piece : work_.pieces) error += kernels::squared_norm(piece.residual);
    if (!std::isfinite(work_.energy) || !std::isfinite(error)) return;
    bucket_.counters.measured_energy += work_.energy;
    bucket_.counters.error_energy += error;
  }

  const BucketReduction& bucket_;
  const MessagePlan& plan_;
  bool measured_ = false;
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
    Exchange exchange = plan.chosen->compressor->exchange(message.work(), bucket.context);
    co_await exchange;
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
