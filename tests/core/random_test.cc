#include "core/random.h"

#include <set>

#include <gtest/gtest.h>

namespace thinwire {
namespace {

using Place = std::pair<std::array<std::uint32_t, 4>, std::array<std::uint32_t, 2>>;

Place place_of(const RandomSequence& sequence) { return {sequence.counter, sequence.key}; }

TEST(RandomSequence, APartIsWhatItWouldBeByItself) {
  EXPECT_EQ(place_of(RandomSequence::of(1, 2, 3, 1000, 4).from(24)), place_of(RandomSequence::of(1, 2, 3, 1024, 4)));
}

TEST(RandomSequence, WhateverElseIsDrawnForBeginsElsewhere) {
  constexpr std::uint64_t high = std::uint64_t{1} << 40;
  const RandomSequence base = RandomSequence::of(1, 2, 3, 4, 5);
  const std::set<Place> places = {place_of(base),
                                  place_of(base.second()),
                                  place_of(RandomSequence::of(2, 2, 3, 4, 5)),
                                  place_of(RandomSequence::of(1 + high, 2, 3, 4, 5)),
                                  place_of(RandomSequence::of(1, 3, 3, 4, 5)),
                                  place_of(RandomSequence::of(1, 2, 4, 4, 5)),
                                  place_of(RandomSequence::of(1, 2, 3, 6, 5)),
                                  place_of(RandomSequence::of(1, 2, 3, 4, 6))};
  EXPECT_EQ(places.size(), 8u);
}

}  // namespace
}  // namespace thinwire
