// Several groups at once through thousands of collectives of random kinds and sizes; for the thread sanitizer above all.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>

#include "worker_threads.h"

namespace thinwire {
namespace {

constexpr int kRounds = 3000;
constexpr std::size_t kLargest = 700;

// Values are small integers, so sums are exact and every worker can tell what must come out. Buffers live for one round
// only, as those of an exchange do.
class Worker {
 public:
  Worker(Communicator& communicator, unsigned seed) : communicator_(communicator), common_(seed) {}

  void run() {
    for (int round = 0; round < kRounds; ++round) step();
  }

 private:
  void step() {
    const auto kind = static_cast<CollectiveKind>(common_() % 6);
    const std::size_t size = common_() % kLargest;
    const int root = static_cast<int>(common_() % workers());
    const auto salt = static_cast<std::uint32_t>(common_());
    switch (kind) {
      case CollectiveKind::kSum:
      case CollectiveKind::kMax:
      case CollectiveKind::kUnite:
        return combine(kind, size, salt);
      case CollectiveKind::kGather:
      case CollectiveKind::kScatter:
        return exchange(kind, size, salt);
      case CollectiveKind::kBroadcast:
        return broadcast(size, root, salt);
    }
  }

  std::size_t workers() const { return static_cast<std::size_t>(communicator_.world_size()); }
  std::size_t rank() const { return static_cast<std::size_t>(communicator_.rank()); }
  static std::uint32_t value(std::size_t rank, std::size_t i, std::uint32_t salt) {
    return (salt + static_cast<std::uint32_t>(31 * i + 7 * rank)) % 1024;
  }
  std::vector<std::uint32_t> values(std::size_t size, std::uint32_t salt) const {
    std::vector<std::uint32_t> mine(size);
    for (std::size_t i = 0; i < size; ++i) mine[i] = value(rank(), i, salt);
    return mine;
  }

  void combine(CollectiveKind kind, std::size_t size, std::uint32_t salt) {
    std::vector<std::uint32_t> mine = values(size, salt);
    const auto type = kind == CollectiveKind::kUnite ? ElementType::kUint32 : ElementType::kInt32;
    communicator_.perform({.kind = kind, .type = type, .data = bytes_of(mine)});
    for (std::size_t i = 0; i < size; ++i) {
      std::uint32_t expected = 0;
      for (std::size_t r = 0; r < workers(); ++r) {
        const std::uint32_t other = value(r, i, salt);
        if (kind == CollectiveKind::kSum) expected += other;
        else if (kind == CollectiveKind::kMax) expected = std::max(expected, other);
        else expected |= other;
      }
      ASSERT_EQ(mine[i], expected);
    }
  }

  void exchange(CollectiveKind kind, std::size_t size, std::uint32_t salt) {
    const bool gather = kind == CollectiveKind::kGather;
    std::vector<std::uint32_t> mine = values(gather ? size : size * workers(), salt);
    std::vector<std::uint32_t> all(size * workers());
    communicator_.perform({.kind = kind, .type = ElementType::kUint32, .data = bytes_of(mine), .result = bytes_of(all)});
    for (std::size_t r = 0; r < workers(); ++r)
      for (std::size_t i = 0; i < size; ++i)
        ASSERT_EQ(all[r * size + i], value(r, gather ? i : rank() * size + i, salt));
  }

  void broadcast(std::size_t size, int root, std::uint32_t salt) {
    std::vector<std::uint32_t> mine = values(size, salt);
    communicator_.perform({.kind = CollectiveKind::kBroadcast, .root = root, .data = bytes_of(mine)});
    for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(mine[i], value(static_cast<std::size_t>(root), i, salt));
  }

  Communicator& communicator_;
  std::mt19937 common_;  // draws the same on every worker
};

TEST(LocalStress, SeveralGroupsAtOnce) {
  std::vector<std::thread> groups;
  for (const int workers : {2, 3, 5}) {
    groups.emplace_back([workers] {
      Ends group = make_local_communicators(workers);
      const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t) {
        Worker(communicator, static_cast<unsigned>(workers)).run();
      });
      EXPECT_EQ(errors, std::vector<std::string>(workers));
    });
  }
  for (std::thread& group : groups) group.join();
}

}  // namespace
}  // namespace thinwire
