#include "core/scratch.h"

#include <algorithm>
#include <cstdint>

#include <gtest/gtest.h>

namespace thinwire {
namespace {

TEST(Scratch, SpansAreAlignedDisjointAndLastUntilReset) {
  Scratch scratch;
  std::vector<std::span<std::uint64_t>> spans;
  for (std::size_t i = 0; i < 50; ++i) {
    spans.push_back(scratch.take<std::uint64_t>(i * 37 % 101));
    std::fill(spans.back().begin(), spans.back().end(), i);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(spans.back().data()) % 64, 0u);
  }
  for (std::size_t i = 0; i < spans.size(); ++i)
    EXPECT_TRUE(std::all_of(spans[i].begin(), spans[i].end(), [i](std::uint64_t value) { return value == i; }));
}

TEST(Scratch, GrowsOnceAndThenStays) {
  Scratch scratch;
  const auto round = [&scratch] {
    scratch.reset();
    for (const std::size_t size : {1000u, 5u, 70000u}) scratch.take<float>(size);
  };
  round();
  round();
  const std::size_t capacity = scratch.capacity();
  const float* const first = (scratch.reset(), scratch.take<float>(10).data());
  for (int i = 0; i < 100; ++i) round();
  EXPECT_EQ(scratch.capacity(), capacity);
  scratch.reset();
  EXPECT_EQ(scratch.take<float>(10).data(), first);
}

}  // namespace
}  // namespace thinwire
