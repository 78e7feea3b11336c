#include "kernels/selecting.h"

#include <cmath>
#include <numeric>

#include "kernels/every_target.h"
#include "kernels/inputs.h"

namespace thinwire::kernels {
namespace {

class SelectingTest : public EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, SelectingTest, all_targets(), target_name);

// By sorting: the larger magnitude first, and of equal ones the lower place.
std::vector<std::uint16_t> sorted_places(std::span<const float> values, std::size_t count) {
  std::vector<std::uint16_t> places(values.size());
  std::iota(places.begin(), places.end(), std::uint16_t{0});
  std::stable_sort(places.begin(), places.end(),
                   [&](std::uint16_t a, std::uint16_t b) { return std::abs(values[a]) > std::abs(values[b]); });
  places.resize(count);
  std::sort(places.begin(), places.end());
  return places;
}

std::vector<std::uint16_t> selected(std::span<const float> values, std::size_t count) {
  std::vector<std::uint16_t> places(count);
  std::vector<std::uint16_t> room(selecting_room(values.size()));
  select_largest(values, places, room);
  return places;
}

std::vector<Content> contents_of(std::size_t n) {
  std::vector<Content> contents = finite_contents(n);
  std::vector<float> few = normal_values(n, 3), spread = normal_values(n, 4), rows = normal_values(n, 5);
  std::vector<float> sparse(n, 0.0F), ramp(n), close(n);
  for (std::size_t i = 0; i < n; ++i) {
    few[i] = std::round(few[i]);                           // many ties, of both signs
    if (i % 50 == 7) sparse[i] = few[i];                   // fewer than are wanted, or all in a few groups
    spread[i] = std::exp(20 * spread[i]);                  // every exponent
    if (i / 16 % 17 == 0) rows[i] *= 100;                  // the groups that a sample may take
    ramp[i] = static_cast<float>(i) - 0.4F * static_cast<float>(n);
    close[i] = 1 + static_cast<float>((i * 7919) % 257) * 0x1p-23F;  // that only the last digits tell apart
  }
  contents.insert(contents.end(), {{"ties", few}, {"sparse", sparse}, {"spread", spread}, {"rows", rows}, {"ramp", ramp}, {"close", close}});
  return contents;
}

TEST_P(SelectingTest, TakesWhatSortingTakes) {
  for (const std::size_t n : {0U, 1U, 2U, 7U, 15U, 16U, 17U, 33U, 255U, 4097U, 32767U, 32768U, 65535U}) {
    const bool is_large = n > 5000;
    for (const Content& content : contents_of(n)) {
      const Buffer<float> values(content.values, n % 3);
      const bool is_tried_in_full = !is_large || content.name == "normal" || content.name == "ties" || content.name == "zero";
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, (n + 999) / 1000, (n + 99) / 100, n / 20, n / 2, n - n / 50,
                                      n - std::min<std::size_t>(n, 1), n}) {
        if (count > n || (!is_tried_in_full && count > n / 20)) continue;
        ASSERT_EQ(selected(values.span(), count), sorted_places(values.span(), count)) << content.name << ", " << count << " of " << n;
      }
    }
  }
}

TEST_P(SelectingTest, TakesAllFromAMagnitudeOn) {
  for (const std::size_t n : {0U, 1U, 16U, 17U, 63U, 64U, 65U, 4097U, 32768U, 65535U})
    for (const Content& content : contents_of(n)) {
      const Buffer<float> values(content.values, n % 3);
      for (const float least : {0.0F, std::numeric_limits<float>::denorm_min(), 0.5F, 1.0F, n > 0 ? std::abs(values.span()[n / 2]) : 2.0F}) {
        std::vector<std::uint16_t> expected, room(selecting_room(n));
        for (std::size_t i = 0; i < n; ++i)
          if (std::abs(values.span()[i]) >= least) expected.push_back(static_cast<std::uint16_t>(i));
        room.resize(select_from(values.span(), least, room));
        ASSERT_EQ(room, expected) << content.name << " of " << n << " from " << least;
      }
    }
}

TEST_P(SelectingTest, WhatIsNotFiniteIsLargest) {
  std::vector<float> values = normal_values(4097);
  values[9] = std::numeric_limits<float>::infinity();
  values[4096] = -std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(selected(values, 2), (std::vector<std::uint16_t>{9, 4096}));
  EXPECT_EQ(selected(values, 1), (std::vector<std::uint16_t>{4096}));
}

}  // namespace
}  // namespace thinwire::kernels
