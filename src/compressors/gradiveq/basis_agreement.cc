#include "compressors/gradiveq/basis_agreement.h"

#include <algorithm>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

// What a worker announces of a parameter, so that the largest is the one that is taken: steps above the rank's complement. 0: nothing.
constexpr std::int32_t kRanks = 1 << 16;
constexpr std::int32_t kMostSteps = (1 << 15) - 1;

std::int32_t announcement(const GradiveqCycle& cycle, int rank) {
  const auto steps = std::clamp<std::uint32_t>(cycle.learnt_steps(), 1, kMostSteps);
  return static_cast<std::int32_t>(steps) * kRanks + (kRanks - 1 - rank);
}
int root_of(std::int32_t announced, int world_size) {
  const int root = kRanks - 1 - announced % kRanks;
  if (announced < 0 || root >= world_size) throw PayloadError("a basis of gradiveq is announced by no worker");
  return root;
}

// A basis' order and axis above its number of components. 0: none.
constexpr std::int32_t kDims = 1 << 16;

std::int32_t number_of(const BasisKind& kind) {
  return (static_cast<std::int32_t>(kind.axis) + (kind.by_channel ? kAxes : 0)) * kDims + static_cast<std::int32_t>(kind.dims);
}
BasisKind kind_of(std::int32_t number) {
  const std::int32_t above = number / kDims;
  if (number < 0 || above >= 2 * kAxes) throw PayloadError("a basis of gradiveq is of an unknown kind");
  return {static_cast<Axis>(above % kAxes), static_cast<std::size_t>(number % kDims), above >= kAxes};
}

// What one worker broadcasts: the bases of the parameters of which it is the root.
class Broadcast {
 public:
  struct Entry {
    GradiveqCycle* cycle = nullptr;
    const Basis* own = nullptr;  // of this worker, found in this cycle
    std::int32_t announced = 0;
    std::int32_t kind = 0;
    int root = -1;  // nobody's
  };

  Broadcast(std::span<const Entry> entries, int root) : entries_(entries), root_(root) {}

  std::size_t numbers() const {
    std::size_t numbers = 0;
    for_each([&](const Entry&, const BasisKind&, std::size_t length) { numbers += length; });
    return numbers;
  }
  void write(std::span<float> all) const {
    for_each([&](const Entry& entry, const BasisKind&, std::size_t length) {
      GradiveqCycle::write_basis(*entry.own, all.first(length));
      all = all.subspan(length);
    });
  }
  void read(std::span<const float> all) const {
    for_each([&](const Entry& entry, const BasisKind& kind, std::size_t length) {
      entry.cycle->use(entry.cycle->read_basis(kind, all.first(length)));
      all = all.subspan(length);
    });
  }

 private:
  template <class Body>
  void for_each(const Body& body) const {
    for (const Entry& entry : entries_) {
      if (entry.root != root_) continue;
      const BasisKind kind = kind_of(entry.kind);
      const std::size_t entries = entry.cycle->slices(kind.axis).entries();
      if (kind.dims == 0 || kind.dims > entries)
        throw PayloadError("a basis of gradiveq has " + std::to_string(kind.dims) + " components for slices of " + std::to_string(entries) + " entries");
      body(entry, kind, entry.cycle->basis_numbers(kind.dims, entries));
    }
  }

  std::span<const Entry> entries_;
  int root_;
};

}  // namespace

Exchange agree_on_bases(std::span<GradiveqCycle* const> cycles, Context& context) {
  const auto entries = context.scratch().take<Broadcast::Entry>(cycles.size());
  const auto numbers = context.scratch().take<std::int32_t>(cycles.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    entries[i] = {cycles[i], cycles[i]->found()};
    numbers[i] = entries[i].own ? announcement(*cycles[i], context.rank()) : 0;
  }
  Await announcements = context.max(numbers);
  co_await announcements;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (numbers[i] != 0) entries[i].root = root_of(numbers[i], context.world_size());
    const bool is_root = entries[i].root == context.rank();
    if (is_root && !entries[i].own) throw PayloadError("a basis of gradiveq is announced by a worker that has none");
    numbers[i] = entries[i].kind = is_root ? number_of(*entries[i].own) : 0;
  }
  Await kinds = context.max(numbers);
  co_await kinds;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].root == context.rank() && numbers[i] != entries[i].kind) throw PayloadError("a basis of gradiveq is of another kind than was sent");
    entries[i].kind = numbers[i];
    if (entries[i].root < 0) cycles[i]->use(nullptr);
  }
  for (int root = 0; root < context.world_size(); ++root) {
    const Broadcast broadcast(entries, root);
    const auto all = context.scratch().take<float>(broadcast.numbers());
    if (all.empty()) continue;
    if (root == context.rank()) broadcast.write(all);
    Await round = context.broadcast(std::as_writable_bytes(all), root);
    co_await round;
    broadcast.read(all);
  }
}

}  // namespace thinwire
