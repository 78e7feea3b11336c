// What sockets bring of their own: ends of workers, clean and not, and bytes that are no messages. What collectives compute is in collectives_test.cc.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <random>

#include "failure_checks.h"
#include "sanitized.h"
#include "socket_pairs.h"

namespace thinwire {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr auto kForever = 1h;  // a test that needs this timeout to pass never ends
constexpr std::size_t kLarge = 300'000;  // floats: more than sockets hold

// All but the last worker, whose sockets are left to the test.
Ends without_the_last(const std::vector<SocketOptions>& options) {
  Ends group;
  for (std::size_t rank = 0; rank + 1 < options.size(); ++rank) group.push_back(make_socket_communicator(options[rank]));
  return group;
}

void close_all(const SocketOptions& of_worker) {
  for (const auto& channels : of_worker.sockets)
    for (const int socket : channels)
      if (socket >= 0) close(socket);
}

TEST(Sockets, ManyCollectivesOfAllLengths) {
  constexpr int kWorkers = 4, kSteps = testing::kSanitized ? 200 : 1000;
  Ends group = make_socket_group(kWorkers, kForever);
  const auto errors = run_workers(group, [](Communicator& communicator, std::size_t rank) {
    std::mt19937 lengths(7);  // the same on all workers
    for (int step = 0; step < kSteps; ++step) {
      const std::size_t elements = step % 50 == 0 ? 200'000 : lengths() % 3000;
      std::vector<float> values(elements, static_cast<float>(rank + 1)), everyones(elements * kWorkers);
      communicator.perform({.kind = CollectiveKind::kGather, .data = bytes_of(values), .result = bytes_of(everyones)});
      for (std::size_t i = 0; i < everyones.size(); ++i) ASSERT_EQ(everyones[i], static_cast<float>(i / elements + 1));
      sum(communicator, values);
      for (const float value : values) ASSERT_EQ(value, 10);
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(Sockets, WhoHasDoneItsPartMayLeave) {
  for (int trial = 0; trial < 50; ++trial) {
    Ends group = make_socket_group(3, kForever);
    const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
      sum_of(communicator, 40'000);
      group[rank].reset();
    });
    for (const std::string& error : errors) ASSERT_EQ(error, "");
  }
}

TEST(Sockets, AnotherWorkersErrorIsPassedOn) {
  Ends group = make_socket_group(3, kForever);
  const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
    sum_of(communicator, 4);
    if (rank == 2) group[rank].reset();
    else sum_of(communicator, kLarge);
  });
  EXPECT_EQ(errors[2], "");
  for (const std::size_t rank : {0U, 1U}) expect_mentions(errors[rank], {"worker "});
  EXPECT_TRUE(errors[0].find("left the group") != std::string::npos || errors[1].find("left the group") != std::string::npos)
      << errors[0] << "; " << errors[1];
}

TEST(Sockets, AProcessThatEndsWithoutAWordIsNoticedAtOnce) {
  for (const std::size_t elements : {std::size_t{4}, kLarge}) {
    const auto options = join_by_sockets(3, kForever);
    Ends group = without_the_last(options);
    std::thread dying([&] {
      std::this_thread::sleep_for(50ms);
      close_all(options[2]);
    });
    const auto begin = steady_clock::now();
    const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t) { sum_of(communicator, elements); });
    EXPECT_LT(steady_clock::now() - begin, 20s);
    dying.join();
    for (const std::string& error : errors) EXPECT_NE(error, "");
    EXPECT_NE((errors[0] + errors[1]).find("worker 2 cannot be reached"), std::string::npos) << errors[0] << "; " << errors[1];
    expect_broken(group);
  }
}

TEST(Sockets, AnotherThreadMayLeave) {
  for (int trial = 0; trial < 20; ++trial) {
    Ends group = make_socket_group(2, kForever);
    std::thread leaving([&] {
      std::this_thread::sleep_for(2ms);
      group[0]->abandon();
    });
    const auto errors = run_workers(group, [](Communicator& communicator, std::size_t rank) {
      if (rank == 0) sum_of(communicator, 100);  // the other one never comes
    });
    leaving.join();
    expect_mentions(errors[0], {"has left the group"});
  }
}

TEST(Sockets, ALateWorkerIsNamed) {
  const auto options = join_by_sockets(3, 100ms);
  Ends group = without_the_last(options);
  const auto errors = run_workers(group, [](Communicator& communicator, std::size_t) { sum_of(communicator, 4); });
  for (const std::string& error : errors) EXPECT_NE(error, "");
  EXPECT_NE((errors[0] + errors[1]).find("worker 2 sent nothing for 100 ms"), std::string::npos) << errors[0] << "; " << errors[1];
  close_all(options[2]);
}

TEST(Sockets, BytesThatAreNoMessagesAreRefused) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 40; ++trial) {
    const auto options = join_by_sockets(2, kForever);
    Ends group = without_the_last(options);
    // A length that there is no room for; one of a message that is none; anything; the same in place of what a worker says when it leaves.
    std::vector<std::uint8_t> bytes(8 + random() % 200);
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(trial % 4 == 0 ? 255 : random());
    if (trial % 4 == 1) bytes = {3, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3};
    const int channel = trial % 4 == 3 ? 1 : 0;
    ASSERT_GT(write(options[1].sockets[0][static_cast<std::size_t>(channel)], bytes.data(), bytes.size()), 0);
    shutdown(options[1].sockets[0][static_cast<std::size_t>(channel)], SHUT_WR);
    if (channel == 1) shutdown(options[1].sockets[0][0], SHUT_WR);
    const auto errors = run_workers(group, [](Communicator& communicator, std::size_t) { sum_of(communicator, 100); });
    EXPECT_NE(errors[0], "");
    expect_broken(group);
    close_all(options[1]);
  }
}

// As a DataLoader's workers are made.
TEST(Sockets, AForkedProcessLeavesThemToItsParent) {
  Ends group = make_socket_group(2, kForever);
  const auto sum_on_both = [&] {
    return run_workers(group, [](Communicator& communicator, std::size_t) { sum_of(communicator, 100); });
  };
  for (const std::string& error : sum_on_both()) EXPECT_EQ(error, "");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    group.clear();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const std::string& error : sum_on_both()) EXPECT_EQ(error, "");
}

TEST(Sockets, CollectivesOfOtherLengthsAreNamedOnBothSides) {
  for (const std::size_t other : {std::size_t{50}, std::size_t{200}, kLarge}) {
    Ends group = make_socket_group(2, kForever);
    const auto errors = run_workers(group, [&](Communicator& communicator, std::size_t rank) {
      sum_of(communicator, rank == 1 ? other : 100);
    });
    for (const std::string& error : errors) EXPECT_NE(error, "");
    EXPECT_NE((errors[0] + errors[1]).find("different collectives"), std::string::npos) << errors[0] << "; " << errors[1];
    expect_broken(group);
  }
}

TEST(Sockets, WhatCannotBeAGroupIsRefused) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  EXPECT_THROW(make_socket_communicator({.rank = 0, .sockets = {{-1, -1}, {pipe_ends[0], pipe_ends[1]}}}), ArgumentError);
  EXPECT_EQ(close(pipe_ends[0]), -1) << "it was not taken over";
  EXPECT_THROW(make_socket_communicator({.rank = 2, .sockets = {{-1, -1}}}), ArgumentError);
  EXPECT_THROW(make_socket_communicator({.rank = 0, .sockets = {{-1, -1}}, .timeout = 0ms}), ArgumentError);
  SocketOptions uneven = join_by_sockets(1)[0];
  uneven.hosts = {0, 1};
  EXPECT_THROW(make_socket_communicator(uneven), ArgumentError);
}

}  // namespace
}  // namespace thinwire
