#include "reducer/plan.h"

#include <algorithm>

#include "core/work.h"

namespace thinwire {
namespace {

// The grid's step within a parameter, as Compressor::unit() says.
std::uint64_t chunk_elements(const Parameter& parameter, const Compressor& compressor) {
  const Unit unit = compressor.unit();
  if (unit == Unit::kElement) return kChunkElements;
  // Which rows are used is told for all of a parameter at once.
  if (unit != Unit::kSlice) return std::max<std::uint64_t>(parameter.elements(), 1);
  const std::uint64_t slices = compressor.slice_elements(parameter);
  return std::max(slices, kChunkElements / slices * slices);
}

class Planner {
 public:
  Planner(const Layout& layout, const Policy& policy, std::span<const std::uint32_t> parameters)
      : layout_(layout), policy_(policy), parameters_(parameters) {
    std::uint64_t next = 0;
    for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
      first_chunks_.push_back(next);
      const std::uint64_t step = chunk_elements(layout.parameters()[i], *policy.compressor_of(i).compressor);
      next += (layout.parameters()[i].elements() + step - 1) / step;
    }
  }

  BucketPlan plan() {
    for (std::uint32_t entry = 0; entry < parameters_.size(); ++entry) entries_of(chosen(entry)).push_back(entry);
    for (const PreparedGroup& group : plan_.groups) {
      start_message(group.chosen);
      for (const std::uint32_t entry : group.entries) add_parameter(entry, *group.chosen);
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

  void add_parameter(std::uint32_t entry, const ChosenCompressor& compressor) {
    const Parameter& parameter = layout_.parameters()[parameters_[entry]];
    const std::uint64_t step = chunk_elements(parameter, *compressor.compressor);
    std::uint64_t number = first_chunks_[parameters_[entry]];
    for (std::uint64_t first = 0; first < parameter.elements(); first += step) {
      const std::uint64_t elements = std::min(step, parameter.elements() - first);
      if (plan_.messages.back().elements + elements > kMessageElements) start_message(&compressor);
      plan_.messages.back().chunks.push_back({entry, first, elements, number++});
      plan_.messages.back().elements += elements;
    }
  }

  const Layout& layout_;
  const Policy& policy_;
  std::span<const std::uint32_t> parameters_;
  std::vector<std::uint64_t> first_chunks_;  // of every parameter of the layout, in the grid
  BucketPlan plan_;
};

}  // namespace

BucketPlan plan_bucket(const Layout& layout, const Policy& policy, std::span<const std::uint32_t> parameters) {
  return Planner(layout, policy, parameters).plan();
}

}  // namespace thinwire
