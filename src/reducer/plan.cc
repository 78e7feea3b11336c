#include "reducer/plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/work.h"

namespace thinwire {
namespace {

// The grid's step within a parameter, as Compressor::unit() says.
std::uint64_t grid_step(const Parameter& parameter, const ChosenCompressor& chosen) {
  const Unit unit = chosen.compressor->unit();
  if (unit == Unit::kElement) return chosen.chunk;
  // Which rows are used is told for all of a parameter at once.
  if (unit != Unit::kSlice) return std::max<std::uint64_t>(parameter.elements(), 1);
  const std::uint64_t slices = chosen.compressor->slice_elements(parameter);
  return std::max(slices, kChunkElements / slices * slices);
}

class Planner {
 public:
  Planner(const Layout& layout, const Policy& policy, std::span<const std::uint32_t> parameters, std::span<const std::uint32_t> owners)
      : layout_(layout), policy_(policy), parameters_(parameters), owners_(owners) {
    std::uint64_t next = 0;
    for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
      first_chunks_.push_back(next);
      const std::uint64_t step = grid_step(layout.parameters()[i], policy.compressor_of(i));
      next += (layout.parameters()[i].elements() + step - 1) / step;
    }
  }

  BucketPlan plan() {
    for (std::uint32_t entry = 0; entry < parameters_.size(); ++entry) entries_of(chosen(entry)).push_back(entry);
    for (const PreparedGroup& group : plan_.groups) {
      std::vector<Chunk> chunks;
      for (const std::uint32_t entry : group.entries) cut_parameter(entry, *group.chosen, chunks);
      if (!owners_.empty()) take_turns(chunks);
      start_message(group.chosen);
      for (const Chunk& chunk : chunks) add_chunk(chunk, group.chosen);
    }
    std::erase_if(plan_.messages, [](const MessagePlan& message) { return message.chunks.empty(); });
    return std::move(plan_);
  }

 private:
  const ChosenCompressor& chosen(std::uint32_t entry) const { return policy_.compressor_of(parameters_[entry]); }

  std::vector<std::uint32_t>& entries_of(const ChosenCompressor& compressor) {
    for (PreparedGroup& group : plan_.groups)
      if (group.chosen == &compressor) return group.entries;
    return plan_.groups.emplace_back(PreparedGroup{&compressor, {}}).entries;
  }

  void start_message(const ChosenCompressor* compressor) { plan_.messages.push_back({compressor, {}, 0}); }

  void cut_parameter(std::uint32_t entry, const ChosenCompressor& compressor, std::vector<Chunk>& chunks) const {
    const Parameter& parameter = layout_.parameters()[parameters_[entry]];
    const std::uint64_t step = grid_step(parameter, compressor);
    std::uint64_t number = first_chunks_[parameters_[entry]];
    for (std::uint64_t first = 0; first < parameter.elements(); first += step)
      chunks.push_back({entry, first, std::min(step, parameter.elements() - first), number++});
  }

  // Owners in turns, so that each message has about as much for every one of them: what is sent to each is padded to the longest.
  void take_turns(std::vector<Chunk>& chunks) const {
    std::map<std::uint32_t, std::uint32_t> counts;
    std::vector<std::pair<std::uint32_t, Chunk>> turns;
    for (const Chunk& chunk : chunks) turns.emplace_back(counts[owners_[parameters_[chunk.entry]]]++, chunk);
    std::ranges::stable_sort(turns, {}, &std::pair<std::uint32_t, Chunk>::first);
    for (std::size_t i = 0; i < chunks.size(); ++i) chunks[i] = turns[i].second;
  }

  void add_chunk(const Chunk& chunk, const ChosenCompressor* compressor) {
    if (plan_.messages.back().elements + chunk.elements > kMessageElements) start_message(compressor);
    plan_.messages.back().chunks.push_back(chunk);
    plan_.messages.back().elements += chunk.elements;
  }

  const Layout& layout_;
  const Policy& policy_;
  std::span<const std::uint32_t> parameters_, owners_;
  std::vector<std::uint64_t> first_chunks_;  // of every parameter of the layout, in the grid
  BucketPlan plan_;
};

}  // namespace

BucketPlan plan_bucket(const Layout& layout, const Policy& policy, std::span<const std::uint32_t> parameters,
                       std::span<const std::uint32_t> owners) {
  return Planner(layout, policy, parameters, owners).plan();
}

}  // namespace thinwire
