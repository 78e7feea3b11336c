#include "core/host_groups.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "thinwire/errors.h"

namespace thinwire {

HostGroups::HostGroups(std::span<const int> hosts, int rank, int world_size) {
  for (auto& members : members_) members = {rank};
  auto& all = members_[static_cast<std::size_t>(Group::kAll)];
  all.resize(static_cast<std::size_t>(world_size));
  std::iota(all.begin(), all.end(), 0);
  places_[static_cast<std::size_t>(Group::kAll)] = rank;
  if (hosts.empty()) return;
  if (hosts.size() != all.size())
    throw ArgumentError("hosts names the host of " + std::to_string(hosts.size()) + " workers; there are " + std::to_string(world_size));

  std::map<int, std::vector<int>> workers;  // by host
  for (const int worker : all) workers[hosts[static_cast<std::size_t>(worker)]].push_back(worker);
  if (workers.size() == all.size()) return;  // each is alone on its own
  const std::vector<int>& within = workers[hosts[static_cast<std::size_t>(rank)]];
  const auto place = static_cast<std::size_t>(std::ranges::find(within, rank) - within.begin());
  std::size_t fewest = within.size();
  for (const auto& [host, its] : workers) fewest = std::min(fewest, its.size());
  parts_ = static_cast<int>(fewest);
  weight_ = static_cast<double>(workers.size()) / static_cast<double>(world_size);
  members_[static_cast<std::size_t>(Group::kWithinHost)] = within;
  places_[static_cast<std::size_t>(Group::kWithinHost)] = static_cast<int>(place);
  if (place >= fewest) return;
  auto& between = members_[static_cast<std::size_t>(Group::kBetweenHosts)];
  between.clear();
  for (const auto& [host, its] : workers) between.push_back(its[place]);
  std::ranges::sort(between);
  places_[static_cast<std::size_t>(Group::kBetweenHosts)] = static_cast<int>(std::ranges::find(between, rank) - between.begin());
}

}  // namespace thinwire
