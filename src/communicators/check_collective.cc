#include "communicators/check_collective.h"

#include <cstdint>
#include <functional>

#include "communicators/combine.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}

[[noreturn]] void refuse(const Collective& collective, const std::string& what) {
  throw ArgumentError(describe(collective) + ": " + what);
}

std::size_t result_bytes(const Collective& collective, std::size_t world_size) {
  switch (collective.kind) {
    case CollectiveKind::kGather:
      return collective.data.size() * world_size;
    case CollectiveKind::kScatter:
      return collective.data.size();
    default:
      return 0;
  }
}

}  // namespace

void check_collective(const Collective& collective, int world_size) {
  const std::size_t bytes = collective.data.size();
  const std::size_t element = element_bytes(collective.type);
  const std::size_t workers = static_cast<std::size_t>(world_size);
  if (bytes % element != 0)
    refuse(collective, std::to_string(bytes) + " bytes are not whole elements of " + std::to_string(element) + " bytes");
  if (reinterpret_cast<std::uintptr_t>(collective.data.data()) % element != 0)
    refuse(collective, "the data must be aligned to " + std::to_string(element) + " bytes");

  const bool moves = collective.kind == CollectiveKind::kGather || collective.kind == CollectiveKind::kScatter ||
                     collective.kind == CollectiveKind::kBroadcast;
  if (!moves && !can_combine(collective.kind, collective.type))
    refuse(collective, "a sum takes float32, bfloat16, float16 or int32, a max float32 or int32, a unite uint32");
  if (collective.kind == CollectiveKind::kScatter && bytes % (workers * element) != 0)
    refuse(collective, "the data must divide into " + std::to_string(world_size) + " equal shards, one for each worker");
  if (collective.kind == CollectiveKind::kBroadcast && (collective.root < 0 || collective.root >= world_size))
    refuse(collective, "the root must be 0 to " + std::to_string(world_size - 1));

  const std::size_t expected = result_bytes(collective, workers);
  if (collective.result.size() != expected)
    refuse(collective, "the result has " + std::to_string(collective.result.size()) + " bytes and must have " +
                           std::to_string(expected) + " with " + std::to_string(world_size) + " workers");
  if (overlap(collective.data, collective.result)) refuse(collective, "data and result must not overlap");
}

void check_group(const Collective& collective, const HostGroups& groups) {
  if (collective.group != Group::kAll && !groups.two_levels())
    refuse(collective, std::string("it is of the group '") + name_of(collective.group) +
                           "', and this communicator was made without hosts; give it those that the reducer has");
}

std::string describe(const Collective& collective) {
  return describe(collective.kind, collective.type, collective.data.size(), collective.root);
}

std::string describe(CollectiveKind kind, ElementType type, std::size_t bytes, int root) {
  std::string text = name_of(kind);
  text += " of " + std::to_string(bytes / element_bytes(type)) + ' ' + name_of(type);
  if (kind == CollectiveKind::kBroadcast) text += " from worker " + std::to_string(root);
  return text;
}

}  // namespace thinwire
