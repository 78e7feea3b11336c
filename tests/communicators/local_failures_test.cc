// Lost, late and mistaken workers: every worker ends with an error, soon, and the group is of no further use.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "failure_checks.h"

namespace thinwire {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;
using testing::Test;

constexpr auto kForever = 1h;  // a test that needs this timeout to pass never ends

// Performs `odd` on the last of three workers and a sum of four floats on the others.
std::vector<std::string> perform_mismatched(Collective odd) {
  Ends group = make_local_communicators(3, kForever);
  std::vector<std::vector<float>> data(3, std::vector<float>(4));
  const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
    if (rank == 2) communicator.perform(odd);
    else sum(communicator, data[rank]);
  });
  expect_broken(group);
  return errors;
}

TEST(LocalFailures, DifferentCollectivesAreNamedOnEveryWorker) {
  std::vector<float> four(4), five(5), result(12);
  const auto bytes = bytes_of(four);
  const std::vector<std::pair<Collective, const char*>> odd_ones = {
      {{.kind = CollectiveKind::kMax, .type = ElementType::kFloat32, .data = bytes}, "max of 4 float32"},
      {{.kind = CollectiveKind::kSum, .type = ElementType::kInt32, .data = bytes}, "sum of 4 int32"},
      {{.kind = CollectiveKind::kSum, .type = ElementType::kFloat32, .data = bytes_of(five)},
       "sum of 5 float32"},
      {{.kind = CollectiveKind::kGather, .data = bytes, .result = bytes_of(result)}, "gather of 16 bytes"},
      {{.kind = CollectiveKind::kBroadcast, .root = 1, .data = bytes}, "broadcast of 16 bytes from worker 1"},
  };
  for (const auto& [odd, name] : odd_ones)
    for (const std::string& error : perform_mismatched(odd))
      expect_mentions(error, {"worker 0 a sum of 4 float32", "worker 1 a sum of 4 float32", "worker 2 a", name});
}

TEST(LocalFailures, DifferentRootsOfABroadcast) {
  Ends group = make_local_communicators(2, kForever);
  const auto errors = run_workers(group, [](Communicator& communicator, std::size_t rank) {
    std::vector<std::uint8_t> bytes(3);
    communicator.perform(
        {.kind = CollectiveKind::kBroadcast, .root = static_cast<int>(rank), .data = bytes_of(bytes)});
  });
  for (const std::string& error : errors)
    expect_mentions(error, {"broadcast of 3 bytes from worker 0", "broadcast of 3 bytes from worker 1"});
}

TEST(LocalFailures, PurposeAndTheRootOfASumDoNotMatter) {
  Ends group = make_local_communicators(2, kForever);
  const auto errors = run_workers(group, [](Communicator& communicator, std::size_t rank) {
    std::vector<float> values(2, 1);
    communicator.perform({.kind = CollectiveKind::kSum, .type = ElementType::kFloat32,
                          .purpose = rank == 0 ? Purpose::kSetup : Purpose::kPayload, .root = static_cast<int>(7 * rank),
                          .data = bytes_of(values)});
    EXPECT_EQ(values, std::vector<float>(2, 2));
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(LocalFailures, LateWorkerIsNamedAndFailsAsWell) {
  Ends group = make_local_communicators(3, 50ms);
  const auto start = steady_clock::now();
  const auto errors = run_workers(group, [](Communicator& communicator, std::size_t rank) {
    sum_of(communicator, 4);
    if (rank == 1) std::this_thread::sleep_for(400ms);
    sum_of(communicator, 9);
  });
  EXPECT_LT(steady_clock::now() - start, 30s);
  for (const std::string& error : errors)
    expect_mentions(error, {"worker 1 did not join", "sum of 9 float32", "within 50 ms"});
  expect_broken(group);
}

TEST(LocalFailures, AbandonWakesTheOthersAtOnce) {
  Ends group = make_local_communicators(3, kForever);
  const auto errors = run_workers(group, [](Communicator& communicator, std::size_t rank) {
    sum_of(communicator, 4);
    if (rank == 2) communicator.abandon();
    else sum_of(communicator, 4);
  });
  expect_mentions(errors[0], {"worker 2 has left the group of 3"});
  expect_mentions(errors[1], {"worker 2 has left the group of 3"});
  EXPECT_EQ(errors[2], "");
  expect_broken(group);
}

TEST(LocalFailures, DestructionCountsAsAbandoning) {
  Ends group = make_local_communicators(3, kForever);
  const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
    sum_of(communicator, 4);
    if (rank == 0) group[0].reset();
    else sum_of(communicator, 4);
  });
  EXPECT_EQ(errors[0], "");
  for (const std::size_t rank : {1, 2}) {
    expect_mentions(errors[rank], {"worker 0 has left"});
    EXPECT_THROW(sum_of(*group[rank], 4), PeerError);
  }
}

// The first to return from the last collective destroys its end while others may still be on their way out of it.
TEST(LocalFailures, DestructionAfterTheLastCollectiveDisturbsNobody) {
  for (int i = 0; i < 200; ++i) {
    Ends group = make_local_communicators(3, kForever);
    const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
      sum_of(communicator, 100);
      group[rank].reset();
    });
    EXPECT_EQ(errors, std::vector<std::string>(3));
  }
}

// A worker's buffer dies with its perform(); a thread sanitizer would see anybody who still reads it.
TEST(LocalFailures, NobodyTouchesTheBuffersOfAWorkerThatGaveUp) {
  for (int i = 0; i < 100; ++i) {
    Ends group = make_local_communicators(3, 2ms);
    run_workers(group, [&](Communicator& communicator, std::size_t rank) {
      for (int round = 0; round < 100; ++round) {
        std::vector<float> values(1000, 1);
        if (rank == 2 && round == 5) std::this_thread::sleep_for(std::chrono::microseconds(1700 + 10 * i));
        sum(communicator, values);
        EXPECT_EQ(values, std::vector<float>(1000, 3));
      }
    });
  }
}

TEST(LocalFailures, AWorkerAloneMayAbandonToo) {
  Ends group = make_local_communicators(1);
  sum_of(*group[0], 4);
  group[0]->abandon();
  expect_broken(group);
}

TEST(LocalFailures, NonsenseIsRefusedBeforeAnythingStarts) {
  Ends group = make_local_communicators(1);
  std::vector<float> floats(4), others(4);
  const auto bytes = bytes_of(floats);
  const auto expect_refused = [&](const Collective& collective, std::initializer_list<const char*> parts) {
    try {
      group[0]->perform(collective);
      ADD_FAILURE() << "accepted";
    } catch (const ArgumentError& error) {
      expect_mentions(error.what(), parts);
    }
  };
  using enum CollectiveKind;
  expect_refused({.kind = kUnite, .type = ElementType::kFloat32, .data = bytes}, {"unite of 4 float32", "uint32"});
  expect_refused({.kind = kMax, .type = ElementType::kBfloat16, .data = bytes}, {"max of 8 bfloat16"});
  expect_refused({.kind = kSum, .type = ElementType::kUint8, .data = bytes}, {"sum of 16 bytes"});
  expect_refused({.kind = kSum, .type = ElementType::kFloat32, .data = bytes.first(7)}, {"whole elements"});
  expect_refused({.kind = kSum, .type = ElementType::kFloat32, .data = bytes.subspan(1, 4)}, {"aligned to 4"});
  expect_refused({.kind = kGather, .data = bytes, .result = bytes_of(others).first(3)}, {"has 3 bytes", "must have 16"});
  expect_refused({.kind = kSum, .type = ElementType::kFloat32, .data = bytes, .result = bytes_of(others)}, {"must have 0"});
  expect_refused({.kind = kGather, .data = bytes, .result = bytes}, {"overlap"});
  expect_refused({.kind = kBroadcast, .root = 1, .data = bytes}, {"root must be 0 to 0"});
  expect_refused({.kind = kBroadcast, .root = -1, .data = bytes}, {"root must be"});
  sum_of(*group[0], 4);  // and nothing is broken

  Ends three = make_local_communicators(3);
  EXPECT_THROW(three[0]->perform({.kind = kScatter, .data = bytes, .result = bytes_of(others)}), ArgumentError);
}

TEST(LocalFailures, GroupsThatCannotBe) {
  EXPECT_THROW(make_local_communicators(0), ArgumentError);
  EXPECT_THROW(make_local_communicators(-3), ArgumentError);
  EXPECT_THROW(make_local_communicators(2, 0ms), ArgumentError);
  sum_of(*make_local_communicators(1, std::chrono::milliseconds::max())[0], 1);
}

}  // namespace
}  // namespace thinwire
