// The groups of an exchange on two levels: workers of a host, and those workers of all hosts that compress the same part.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "thinwire/collective.h"

namespace thinwire {

// As many parts are made as the host with the fewest workers has: its i-th worker compresses the i-th part, together with the i-th
// workers of all other hosts. A worker beyond that compresses nothing, and is alone between hosts.
class HostGroups {
 public:
  // hosts: of each worker a number that names its host; empty for one level. Throws ArgumentError.
  HostGroups(std::span<const int> hosts, int rank, int world_size);

  // Whether there are hosts to tell apart; else Group::kAll alone is of any use.
  bool two_levels() const { return parts_ > 0; }
  // Ranks, rising.
  std::span<const int> members(Group group) const { return members_[static_cast<std::size_t>(group)]; }
  int size(Group group) const { return static_cast<int>(members(group).size()); }
  // This worker's among the members.
  int place(Group group) const { return places_[static_cast<std::size_t>(group)]; }

  int parts() const { return parts_; }
  // That this worker compresses: parts() or more for none.
  int part() const { return place(Group::kWithinHost); }
  // What the sum of a host's gradients is multiplied by, so that the mean over the hosts is that over all workers.
  double weight() const { return weight_; }

 private:
  std::array<std::vector<int>, kGroups> members_;
  std::array<int, kGroups> places_{};
  int parts_ = 0;
  double weight_ = 1;
};

}  // namespace thinwire
