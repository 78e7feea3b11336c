#include <gtest/gtest.h>

#include <vector>

#include "thinwire/collective.h"

namespace thinwire {
namespace {

double traffic(CollectiveKind kind, std::size_t bytes, int workers) {
  std::vector<std::byte> data(bytes);
  return traffic_bytes({.kind = kind, .data = data}, workers);
}

TEST(Traffic, NobodySendsAlone) {
  for (int kind = 0; kind < 6; ++kind) EXPECT_EQ(traffic(static_cast<CollectiveKind>(kind), 1000, 1), 0);
}

TEST(Traffic, StandardAlgorithms) {
  for (const int workers : {2, 4, 5}) {
    for (const auto kind : {CollectiveKind::kSum, CollectiveKind::kMax, CollectiveKind::kUnite})
      EXPECT_DOUBLE_EQ(traffic(kind, 1000, workers), 2.0 * (workers - 1) * 1000 / workers);
    EXPECT_DOUBLE_EQ(traffic(CollectiveKind::kGather, 1000, workers), (workers - 1) * 1000.0);
    EXPECT_DOUBLE_EQ(traffic(CollectiveKind::kScatter, 1000, workers), (workers - 1) * 1000.0 / workers);
    EXPECT_DOUBLE_EQ(traffic(CollectiveKind::kBroadcast, 1000, workers), (workers - 1) * 1000.0 / workers);
  }
}

TEST(Traffic, NothingIsFree) { EXPECT_EQ(traffic(CollectiveKind::kSum, 0, 4), 0); }

}  // namespace
}  // namespace thinwire
