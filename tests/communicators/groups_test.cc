// Collectives of workers of one host, and of workers of several hosts, between threads and by messages.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "communicators/message_lane.h"
#include "core/host_groups.h"
#include "post_office.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

using Hosts = std::vector<int>;

class Groups : public testing::TestWithParam<bool> {
 protected:
  static Ends make(const Hosts& hosts, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    const int workers = static_cast<int>(hosts.size());
    return GetParam() ? make_posting_communicators(workers, timeout, {}, hosts) : make_local_communicators(workers, timeout, hosts);
  }
};

// Gathers ranks, sums them, and gives everybody's shard to everybody, within a group.
void try_all(Communicator& communicator, const HostGroups& groups, Group group, int rank) {
  const auto members = groups.members(group);
  std::vector<std::int32_t> mine = {rank}, all(members.size());
  communicator.perform({.kind = CollectiveKind::kGather, .group = group, .data = bytes_of(mine), .result = bytes_of(all)});
  EXPECT_EQ(all, std::vector<std::int32_t>(members.begin(), members.end()));

  std::vector<std::int32_t> sum(5000, rank);
  std::int32_t expected = 0;
  for (const int member : members) expected += member;
  communicator.perform({.kind = CollectiveKind::kSum, .type = ElementType::kInt32, .group = group, .data = bytes_of(sum)});
  EXPECT_EQ(sum, std::vector<std::int32_t>(5000, expected));

  std::vector<std::int32_t> shards, received(members.size());
  for (const int member : members) shards.push_back(100 * rank + member);
  communicator.perform({.kind = CollectiveKind::kScatter, .group = group, .data = bytes_of(shards), .result = bytes_of(received)});
  for (std::size_t i = 0; i < members.size(); ++i) EXPECT_EQ(received[i], 100 * members[i] + rank);

  for (int root = 0; root < static_cast<int>(members.size()); ++root) {
    std::vector<std::int32_t> told = {groups.place(group) == root ? 7 + rank : 0};
    communicator.perform({.kind = CollectiveKind::kBroadcast, .group = group, .root = root, .data = bytes_of(told)});
    EXPECT_EQ(told[0], 7 + members[static_cast<std::size_t>(root)]);
  }
}

TEST_P(Groups, EachHasItsOwnOrder) {
  for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 1, 0, 1, 1}, Hosts{2, 2, 2, 0}, Hosts{0, 0, 0}}) {
    const int workers = static_cast<int>(hosts.size());
    auto group = make(hosts);
    const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t index) {
      const int rank = static_cast<int>(index);
      const HostGroups groups(hosts, rank, workers);
      for (int round = 0; round < 3; ++round) {
        // As many times as the number of the host, or of the part, says: the groups' counts differ.
        for (int more = 0; more <= hosts[index]; ++more) try_all(communicator, groups, Group::kWithinHost, rank);
        for (int more = 0; more <= std::min(groups.part(), groups.parts()); ++more)
          try_all(communicator, groups, Group::kBetweenHosts, rank);
        try_all(communicator, groups, Group::kAll, rank);
      }
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST_P(Groups, WhoLeavesEndsItsHostAndItsPartAtOnce) {
  const Hosts hosts = {0, 0, 1, 1};
  auto group = make(hosts);
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
    const HostGroups groups(hosts, static_cast<int>(rank), 4);
    try_all(communicator, groups, Group::kAll, static_cast<int>(rank));
    if (rank == 0) return communicator.abandon();
    // Worker 1 shares its host, 2 its part; 3 neither, but comes to know by 2, which leaves on its error.
    const Group first = rank == 1 ? Group::kWithinHost : rank == 2 ? Group::kBetweenHosts : Group::kWithinHost;
    try {
      try_all(communicator, groups, first, static_cast<int>(rank));
    } catch (...) {
      communicator.abandon();
      throw;
    }
  });
  EXPECT_EQ(errors[0], "");
  for (const std::size_t rank : {1, 2, 3}) EXPECT_NE(errors[rank].find("worker"), std::string::npos) << rank;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

TEST_P(Groups, HostsThatCannotBe) {
  EXPECT_THROW(make_local_communicators(3, std::chrono::seconds(1), Hosts{0, 1}), ArgumentError);
  EXPECT_THROW(make_posting_communicators(3, std::chrono::seconds(1), {}, Hosts{0, 1, 1, 1}), ArgumentError);
}

// In one lane, which cuts what it sends within a host into longer pieces.
TEST(Segments, AreShortBetweenHostsAndLongWithinOne) {
  constexpr std::size_t kElements = 500'000;  // several of either in a worker's part
  std::size_t longest = 0;
  const auto measure = [&](int, int, int, const PostOffice::Letter& letter) {
    longest = std::max(longest, letter.size());
    return true;
  };
  auto group = make_posting_communicators(4, std::chrono::seconds(20), measure, Hosts{0, 0, 1, 1});
  for (const auto& [whose, workers, bytes] : {std::tuple(Group::kBetweenHosts, 2, kBetweenHostsSegments.bytes), std::tuple(Group::kWithinHost, 2, kWithinHostSegments.bytes),
                                               std::tuple(Group::kAll, 4, kBetweenHostsSegments.bytes)}) {
    longest = 0;
    const auto errors = run_workers(group, [&, whose = whose, workers = workers](Communicator& communicator, std::size_t) {
      std::vector<float> values(kElements, 1);
      communicator.perform({.kind = CollectiveKind::kSum, .type = ElementType::kFloat32, .group = whose, .data = bytes_of(values)});
      EXPECT_EQ(values, std::vector<float>(kElements, static_cast<float>(workers)));
    });
    EXPECT_EQ(errors, std::vector<std::string>(4));
    EXPECT_EQ(longest, sizeof(MessageHeader) + bytes) << name_of(whose);
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, Groups, testing::Bool(), [](const auto& engine) { return engine.param ? "messages" : "threads"; });

}  // namespace
}  // namespace thinwire
