#include "thinwire/collective.h"

namespace thinwire {

double traffic_bytes(const Collective& collective, int world_size) {
  if (world_size <= 1) return 0;
  const double bytes = static_cast<double>(collective.data.size());
  const double others = world_size - 1;
  switch (collective.kind) {
    case CollectiveKind::kSum:
    case CollectiveKind::kMax:
    case CollectiveKind::kUnite:
      return 2 * bytes * others / world_size;  // reduce-scatter, then all-gather
    case CollectiveKind::kGather:
      return bytes * others;
    case CollectiveKind::kScatter:
    case CollectiveKind::kBroadcast:
      return bytes * others / world_size;
  }
  return 0;
}

}  // namespace thinwire
