#include "thinwire/hosts.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <system_error>
#include <filesystem>

namespace thinwire {
namespace {

constexpr std::size_t kIdentityBytes = 128;

}  // namespace

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code none;
  return (boot + " " + std::filesystem::read_symlink("/proc/self/ns/net", none).string()).substr(0, kIdentityBytes);
}

std::vector<int> number_hosts(std::span<const std::string> identities) {
  std::map<std::string, int> numbers;
  std::vector<int> hosts;
  for (const std::string& identity : identities)
    hosts.push_back(numbers.try_emplace(identity, static_cast<int>(numbers.size())).first->second);
  return hosts;
}

std::vector<int> find_hosts(Communicator& communicator) {
  std::string mine = host_identity();
  mine.resize(kIdentityBytes);
  std::string all(kIdentityBytes * static_cast<std::size_t>(communicator.world_size()), '\0');
  communicator.perform({.kind = CollectiveKind::kGather, .purpose = Purpose::kSetup, .data = std::as_writable_bytes(std::span(mine)),
                        .result = std::as_writable_bytes(std::span(all))});
  std::vector<std::string> identities;
  for (std::size_t begin = 0; begin < all.size(); begin += kIdentityBytes) identities.push_back(all.substr(begin, kIdentityBytes));
  return number_hosts(identities);
}

bool has_two_levels(std::span<const int> hosts) {
  std::vector<int> distinct(hosts.begin(), hosts.end());
  std::ranges::sort(distinct);
  distinct.erase(std::ranges::unique(distinct).begin(), distinct.end());
  return distinct.size() > 1 && distinct.size() < hosts.size();
}

}  // namespace thinwire
