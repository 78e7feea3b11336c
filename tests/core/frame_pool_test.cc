#include "core/frame_pool.h"

#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace thinwire {
namespace {

TEST(FramePool, ReturnedFramesAreUsedAgainAndLiveOnesAreNot) {
  void* const first = take_frame(700);
  void* const second = take_frame(700);
  EXPECT_NE(first, second);
  return_frame(first, 700);
  EXPECT_EQ(take_frame(701), first);  // of the same 256 bytes
  return_frame(first, 701);
  return_frame(second, 700);
}

TEST(FramePool, FramesHoldWhatWasAskedFor) {
  for (const std::size_t bytes : {1u, 255u, 256u, 257u, 8191u, 8192u, 8193u, 100000u}) {
    for (int round = 0; round < 2; ++round) {
      void* const frame = take_frame(bytes);
      std::memset(frame, round, bytes);  // the address sanitizer's run sees a frame that is too short
      return_frame(frame, bytes);
    }
  }
}

TEST(FramePool, AnyThreadMayReturnWhatAnotherTook) {
  constexpr std::size_t kThreads = 4;
  std::vector<std::vector<void*>> taken(kThreads);
  const auto on_threads = [](auto work) {
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
    for (std::thread& thread : threads) thread.join();
  };
  for (int round = 0; round < 20; ++round) {
    on_threads([&](std::size_t t) {
      for (std::size_t i = 0; i < 50; ++i) {
        taken[t].push_back(take_frame(300));
        std::memset(taken[t].back(), static_cast<int>(t), 300);
      }
    });
    on_threads([&](std::size_t t) {
      std::vector<void*>& others = taken[(t + 1) % kThreads];
      for (void* frame : others) return_frame(frame, 300);
      others.clear();
    });
  }
}

}  // namespace
}  // namespace thinwire
