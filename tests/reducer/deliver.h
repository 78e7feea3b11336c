// What a network does, for workers whose reductions one thread runs in step.
#pragma once

#include <cstring>
#include <span>

#include "communicators/combine.h"
#include "thinwire/collective.h"

namespace thinwire::testing {

// posted: the same collective of all workers, in rank order.
inline void deliver(std::span<const Collective> posted) {
  const Collective& first = posted[0];
  const std::size_t part = first.result.size() / posted.size();
  if (first.kind == CollectiveKind::kBroadcast) {
    const auto root = static_cast<std::size_t>(first.root);
    for (std::size_t to = 0; to < posted.size(); ++to)
      if (to != root && !first.data.empty()) std::memcpy(posted[to].data.data(), posted[root].data.data(), first.data.size());
    return;
  }
  if (first.result.empty()) combine(posted, 0, first.data.size() / element_bytes(first.type));
  for (std::size_t to = 0; to < posted.size() && part > 0; ++to)
    for (std::size_t from = 0; from < posted.size(); ++from) {
      const std::size_t offset = first.kind == CollectiveKind::kScatter ? to * part : 0;
      std::memcpy(posted[to].result.data() + from * part, posted[from].data.data() + offset, part);
    }
}

}  // namespace thinwire::testing
