// How many messages wait for one another, beside the chains that the workers' plans have.
#include "communicators/transfers.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace thinwire {
namespace {

// The longest chain of messages, each of which is sent when the one before has come. Between two workers the n-th that is sent is the n-th received.
class Chains {
 public:
  Chains(const Collective& collective, int world_size) {
    for (int rank = 0; rank < world_size; ++rank) {
      TransferPlan plan;
      plan_transfers(collective, rank, world_size, kBetweenHostsSegments.bytes, plan);
      plans_.push_back(std::move(plan));
    }
    for (int rank = 0; rank < world_size; ++rank)
      for (std::size_t i = 0; i < plan(rank).sends.size(); ++i) sent_[{rank, plan(rank).sends[i].peer}].push_back(i);
  }

  int longest() const {
    int most = 0;
    for (std::size_t rank = 0; rank < plans_.size(); ++rank)
      for (const Transfer& sent : plans_[rank].sends) most = std::max(most, length(static_cast<int>(rank), sent));
    return most;
  }

 private:
  const TransferPlan& plan(int rank) const { return plans_[static_cast<std::size_t>(rank)]; }

  int length(int rank, const Transfer& sent) const {
    if (sent.after == Transfer::kNothing) return 1;
    const std::vector<Transfer>& receives = plan(rank).receives;
    const int from = receives[sent.after].peer;
    const auto before = std::count_if(receives.begin(), receives.begin() + static_cast<std::ptrdiff_t>(sent.after),
                                      [&](const Transfer& other) { return other.peer == from; });
    return 1 + length(from, plan(from).sends[sent_.at({from, rank})[static_cast<std::size_t>(before)]]);
  }

  std::vector<TransferPlan> plans_;
  std::map<std::pair<int, int>, std::vector<std::size_t>> sent_;  // from one to another: places in the plan's sends
};

TEST(Hops, AreTheLongestChainOfMessages) {
  for (const CollectiveKind kind : {CollectiveKind::kSum, CollectiveKind::kMax, CollectiveKind::kUnite, CollectiveKind::kGather,
                                    CollectiveKind::kScatter, CollectiveKind::kBroadcast})
    for (const std::size_t bytes : {0, 60, 8 << 10, (8 << 10) + 60, 128 << 10, (128 << 10) + 60, 960'000})
      for (const int world_size : {1, 2, 3, 5}) {
        std::vector<std::byte> data(bytes);
        const Collective collective = {.kind = kind, .data = data};
        EXPECT_EQ(hops_of(collective, world_size), Chains(collective, world_size).longest())
            << "kind " << static_cast<int>(kind) << ", " << bytes << " bytes, " << world_size << " workers";
      }
}

}  // namespace
}  // namespace thinwire
