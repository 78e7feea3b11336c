// Lost, late and mistaken workers, and spoilt messages: every worker that needs them ends with an error, soon, whoever moves the messages.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>

#include "failure_checks.h"
#include "post_office.h"
#include "sanitized.h"

namespace thinwire {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr auto kForever = 1h;  // a test that needs this timeout to pass never ends
constexpr auto kMoment = testing::kSanitized ? 200ms : 50ms;  // sanitizers let workers wait for a core
constexpr std::size_t kLarge = 300'000;  // floats: several segments around a ring

class MessageFailures : public ::testing::TestWithParam<MovedBy> {
 protected:
  std::vector<Ends> lanes_of(int workers, int lanes, std::chrono::milliseconds timeout, PostOffice::Censor censor = {}) const {
    return make_posting_lanes(workers, lanes, timeout, std::move(censor), {}, GetParam());
  }
  Ends group_of(int workers, std::chrono::milliseconds timeout, PostOffice::Censor censor = {}) const {
    return make_posting_communicators(workers, timeout, std::move(censor), {}, GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(ByThread, MessageFailures, ::testing::Values(MovedBy::kThread));
INSTANTIATE_TEST_SUITE_P(ByCaller, MessageFailures, ::testing::Values(MovedBy::kCaller));

PostOffice::Censor spoil(int from, int to, std::function<void(PostOffice::Letter&)> change) {
  return [=, done = false](int sender, int receiver, int channel, PostOffice::Letter& letter) mutable {
    if (sender == from && receiver == to && channel == 0 && !std::exchange(done, true)) change(letter);
    return true;
  };
}

TEST_P(MessageFailures, DifferentCollectivesAreNamed) {
  std::vector<float> four(4), five(5), result(12);
  const auto bytes = bytes_of(four);
  const std::vector<std::pair<Collective, const char*>> odd_ones = {
      {{.kind = CollectiveKind::kMax, .type = ElementType::kFloat32, .data = bytes}, "max of 4 float32"},
      {{.kind = CollectiveKind::kSum, .type = ElementType::kInt32, .data = bytes}, "sum of 4 int32"},
      {{.kind = CollectiveKind::kSum, .type = ElementType::kFloat32, .data = bytes_of(five)}, "sum of 5 float32"},
      {{.kind = CollectiveKind::kGather, .data = bytes, .result = bytes_of(result)}, "gather of 16 bytes"},
  };
  for (const auto& [odd, name] : odd_ones) {
    Ends group = group_of(3, kForever);
    const auto errors = run_workers(group, [&, &collective = odd](Communicator& communicator, std::size_t rank) {
      if (rank == 2) communicator.perform(collective);
      else sum_of(communicator, 4);
    });
    for (const std::string& error : errors) expect_mentions(error, {"different collectives", "sum of 4 float32", name});
    expect_broken(group);
  }
}

TEST_P(MessageFailures, DifferentRootsOfABroadcast) {
  Ends group = group_of(3, kForever);
  const auto errors = run_workers(group, [](Communicator& communicator, std::size_t rank) {
    std::vector<std::uint8_t> bytes(3);
    communicator.perform({.kind = CollectiveKind::kBroadcast, .root = rank == 2 ? 1 : 0, .data = bytes_of(bytes)});
    sum_of(communicator, 4);  // by then everybody knows
  });
  for (const std::string& error : errors) EXPECT_NE(error, "");
  expect_broken(group);
}

TEST_P(MessageFailures, LateWorkerIsNamedAndFailsAsWell) {
  Ends group = group_of(3, 2 * kMoment);
  const auto start = steady_clock::now();
  const auto errors = run_workers(group, [](Communicator& communicator, std::size_t rank) {
    sum_of(communicator, 4);
    if (rank == 0) std::this_thread::sleep_for(kMoment);  // worker 2, who waits for worker 1 itself, is the first to lose patience
    if (rank == 1) std::this_thread::sleep_for(16 * kMoment);
    sum_of(communicator, kLarge);
  });
  EXPECT_LT(steady_clock::now() - start, 30s);
  for (const std::string& error : errors) EXPECT_NE(error, "");
  const std::string silence = "worker 1 sent nothing for " + std::to_string(2 * kMoment.count()) + " ms";
  expect_mentions(errors[2], {silence.c_str(), "sum of 300000 float32"});
  expect_broken(group);
}

TEST_P(MessageFailures, SlownessIsNoFault) {
  std::atomic<int> letters = 0;
  Ends group = group_of(3, 8 * kMoment, [&](int, int, int, PostOffice::Letter&) {
    if (++letters % 4 == 0) std::this_thread::sleep_for(kMoment / 4);  // in all much more than the timeout
    return true;
  });
  const auto errors = run_workers(group, [](Communicator& communicator, std::size_t) { sum_of(communicator, 3 * kLarge); });
  EXPECT_EQ(errors, std::vector<std::string>(3));
  EXPECT_GT(letters.load() / 4 * (kMoment / 4), 8 * kMoment);
}

TEST_P(MessageFailures, AbandonWakesTheOthersAtOnce) {
  for (const std::size_t elements : {std::size_t{4}, kLarge}) {
    Ends group = group_of(4, kForever);
    const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
      sum_of(communicator, elements);
      if (rank == 2) communicator.abandon();
      else sum_of(communicator, elements);
    });
    for (const std::size_t rank : {0, 1, 3}) expect_mentions(errors[rank], {"worker 2", "has left"});
    EXPECT_EQ(errors[2], "");
    expect_broken(group);
  }
}

TEST_P(MessageFailures, DestructionAfterTheLastCollectiveDisturbsNobody) {
  for (int i = 0; i < 50; ++i) {
    Ends group = group_of(3, kForever);
    const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
      sum_of(communicator, 100);
      sum_of(communicator, 10000);
      group[rank].reset();
    });
    EXPECT_EQ(errors, std::vector<std::string>(3));
  }
}

TEST_P(MessageFailures, OneLanesFaultLeavesTheOthersAlone) {
  auto workers = lanes_of(3, 2, kForever);
  workers[1][0]->abandon();
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      EXPECT_THROW(sum_of(*workers[rank][0], kLarge), PeerError);
      std::vector<float> values(kLarge, 1);
      sum(*workers[rank][1], values);
      EXPECT_EQ(values, std::vector<float>(kLarge, 3));
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_P(MessageFailures, SpoiltMessagesAreRefused) {
  const std::vector<std::pair<const char*, std::function<void(PostOffice::Letter&)>>> faults = {
      {"segment of", [](PostOffice::Letter& letter) { letter.pop_back(); }},
      {"no part of", [](PostOffice::Letter& letter) { letter.resize(10); }},
      {"no part of", [](PostOffice::Letter& letter) { letter.clear(); }},
      {"no part of", [](PostOffice::Letter& letter) { letter[0] ^= std::byte{1}; }},
      {"no part of", [](PostOffice::Letter& letter) { letter[4] = std::byte{77}; }},
      {"different collectives", [](PostOffice::Letter& letter) { letter[16] ^= std::byte{1}; }},
      {"longer than its room", [](PostOffice::Letter& letter) { letter.resize(1 << 20); }},
  };
  for (const std::size_t elements : {std::size_t{40}, kLarge})
    for (const auto& [name, change] : faults) {
      Ends group = group_of(3, kForever, spoil(0, 1, change));
      const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t) {
        sum_of(communicator, elements);
        sum_of(communicator, elements);  // who did not need the spoilt message learns of it here
      });
      expect_mentions(errors[1], {"worker 0", name});
      for (const std::size_t rank : {0, 2}) expect_mentions(errors[rank], {"worker", "reports", name});
      expect_broken(group);
    }
}

// A worker's buffer dies with its perform(); a sanitizer would see anybody who still writes to it.
TEST_P(MessageFailures, NobodyTouchesTheBuffersOfAWorkerThatGaveUp) {
  for (int i = 0; i < 30; ++i) {
    Ends group = group_of(3, 2ms);
    run_workers(group, [&](Communicator& communicator, std::size_t rank) {
      for (int round = 0; round < 100; ++round) {
        std::vector<float> values(5000, 1);
        if (rank == 2 && round == 5) std::this_thread::sleep_for(std::chrono::microseconds(1700 + 30 * i));
        sum(communicator, values);
        EXPECT_EQ(values, std::vector<float>(5000, 3));
      }
    });
  }
}

// Whatever is lost, cut or spoilt at a random moment: no worker waits for ever, and sums that are there are right.
TEST_P(MessageFailures, RandomFaults) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const int workers = 2 + static_cast<int>(random() % 4);
    const auto victim = random() % 60, fault = random() % 4;
    std::uint64_t letters = 0;
    auto lanes = lanes_of(workers, 2, 150ms, [&](int, int, int channel, PostOffice::Letter& letter) {
      if (channel == 2 || letters++ < victim) return true;
      if (fault == 0) return letters != victim + 1;  // one is lost
      if (fault == 1) return false;                  // all are from now on
      if (letters == victim + 1 && fault == 2) letter.resize(letter.size() / 2);
      if (letters == victim + 1 && fault == 3) letter[random() % 32] ^= std::byte{0x55};
      return true;
    });
    std::vector<std::thread> threads;
    for (Ends& worker : lanes)
      for (auto& lane : worker)
        threads.emplace_back([&communicator = *lane, seed, workers] {
          try {
            for (const std::size_t elements : {7u, 3000u, 70'000u, 1u, 20'000u}) {
              std::vector<float> values(elements, 1);
              sum(communicator, values);
              ASSERT_EQ(values, std::vector<float>(elements, static_cast<float>(workers))) << "seed " << seed;
            }
          } catch (const PeerError&) {
            communicator.abandon();
          }
        });
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_P(MessageFailures, GroupsThatCannotBe) {
  const auto make = [this](int lanes, std::chrono::milliseconds timeout) {
    return make_message_communicators(std::make_unique<PostMessenger>(std::make_shared<PostOffice>(), 0, 1), lanes, timeout, {}, GetParam());
  };
  EXPECT_THROW(make(0, 1s), ArgumentError);
  EXPECT_THROW(make(65, 1s), ArgumentError);
  EXPECT_THROW(make(1, 0ms), ArgumentError);
  sum_of(*make(1, 1s)[0], 4);
}

}  // namespace
}  // namespace thinwire
