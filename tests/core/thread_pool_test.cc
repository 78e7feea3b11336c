// Loops shared by threads: every index once, whoever calls, whatever fails; for the thread sanitizer too.
#include "core/thread_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace thinwire {
namespace {

constexpr std::uint64_t kMuch = std::uint64_t{1} << 40;  // elements: worth all threads

TEST(ThreadPool, CallsEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const std::size_t count : {0u, 1u, 2u, 3u, 31u, 1000u}) {
      std::vector<std::atomic<int>> calls(count);
      pool.for_each(count, kMuch, [&](std::size_t i, std::size_t) { ++calls[i]; });
      for (const auto& of_index : calls) ASSERT_EQ(of_index, 1) << threads << " threads, " << count << " indices";
    }
  }
}

// Every thread adds to its own counter without a lock.
TEST(ThreadPool, CallsAtTheSameTimeHaveDifferentThreads) {
  ThreadPool pool(4);
  ASSERT_EQ(pool.threads(), 4u);
  std::vector<std::size_t> calls(pool.threads());
  pool.for_each(10000, kMuch, [&](std::size_t, std::size_t thread) { ++calls.at(thread); });
  std::size_t total = 0;
  for (const std::size_t of_thread : calls) total += of_thread;
  EXPECT_EQ(total, 10000u);
}

// The first call ends only when another thread has made the second.
TEST(ThreadPool, HelpersTakePart) {
  ThreadPool pool(2);
  std::atomic<int> begun = 0;
  std::vector<std::thread::id> ids(2);
  pool.for_each(2, kMuch, [&](std::size_t i, std::size_t) {
    ids[i] = std::this_thread::get_id();
    for (++begun; begun < 2;) std::this_thread::yield();
  });
  EXPECT_NE(ids[0], ids[1]);
}

TEST(ThreadPool, WhatIsNotWorthItStaysInTheThreadThatCalls) {
  ThreadPool pool(3);
  pool.for_each(100, 1000, [caller = std::this_thread::get_id()](std::size_t, std::size_t thread) {
    EXPECT_EQ(thread, 0u);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

TEST(ThreadPool, ThrowsWhatTheLeastIndexThrew) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const std::size_t least : {0u, 1u, 17u, 499u}) {
      std::vector<std::atomic<int>> calls(500);
      try {
        pool.for_each(500, kMuch, [&](std::size_t i, std::size_t) {
          ++calls[i];
          if (i >= least && i % 3 == least % 3) throw std::runtime_error(std::to_string(i));
        });
        ADD_FAILURE() << "nothing was thrown";
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(error.what(), std::to_string(least));
      }
      for (std::size_t i = 0; i <= least; ++i) ASSERT_EQ(calls[i], 1);
    }
    std::atomic<int> after = 0;
    pool.for_each(10, kMuch, [&](std::size_t, std::size_t) { ++after; });
    EXPECT_EQ(after, 10);
  }
}

TEST(ThreadPool, SeveralThreadsCallAtOnce) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&pool] {
      for (std::size_t loop = 1; loop < 200; ++loop) {
        std::vector<std::size_t> values(loop);
        pool.for_each(loop, kMuch, [&](std::size_t i, std::size_t) { values[i] = i + loop; });
        for (std::size_t i = 0; i < loop; ++i) ASSERT_EQ(values[i], i + loop);
      }
    });
  for (std::thread& caller : callers) caller.join();
}

TEST(ThreadPool, LoopsNest) {
  ThreadPool pool(3);
  std::atomic<int> calls = 0;
  pool.for_each(7, kMuch, [&](std::size_t, std::size_t) {
    pool.for_each(5, kMuch, [&](std::size_t, std::size_t) { ++calls; });
  });
  EXPECT_EQ(calls, 35);
}

// Helpers round to nearest, whatever the thread that starts them has set for itself.
TEST(ThreadPool, HelpersHaveTheFloatEnvironment) {
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  ThreadPool pool(2);
  const volatile float one = 1, little = 1e-10f;
  std::atomic<int> begun = 0;
  std::vector<float> sums(2);
  pool.for_each(2, kMuch, [&](std::size_t, std::size_t thread) {
    sums[thread] = one + little;
    for (++begun; begun < 2;) std::this_thread::yield();
  });
  std::fesetround(FE_TONEAREST);
  EXPECT_GT(sums[0], 1.0f);
  EXPECT_EQ(sums[1], 1.0f);
}

// The thread sanitizer cannot bear threads, or the lack of them, after a fork.
#ifndef __SANITIZE_THREAD__
TEST(ThreadPool, WorksAndEndsInAForkedProcess) {
  auto pool = std::make_unique<ThreadPool>(3);
  std::atomic<int> calls = 0;
  const auto count = [&](std::size_t, std::size_t) { ++calls; };
  pool->for_each(100, kMuch, count);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    pool->for_each(100, kMuch, count);
    pool.reset();
    _exit(calls == 200 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  pool->for_each(100, kMuch, count);
  EXPECT_EQ(calls, 200);
}
#endif

}  // namespace
}  // namespace thinwire
