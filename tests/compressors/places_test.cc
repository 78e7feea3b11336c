// Places as bytes: what is written comes back, in as many bytes as the sources say, and nothing else is taken for places.
#include "compressors/sparsifiers/places.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

using Places = std::vector<std::uint16_t>;

Places some_places(std::size_t count, std::size_t elements, unsigned seed) {
  Places all(elements), some;
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  std::mt19937 random(seed);
  std::sample(all.begin(), all.end(), std::back_inserter(some), static_cast<std::ptrdiff_t>(count), random);
  return some;
}

std::vector<std::byte> written(const Places& places, std::size_t elements) {
  const PlaceCode format(places.size(), elements);
  std::vector<std::byte> code(format.bytes(), std::byte{0xAA});
  format.write(places, code);
  return code;
}

Places read(const std::vector<std::byte>& code, std::size_t count, std::size_t elements) {
  Places places;
  PlaceCode(count, elements).read(code, [&](std::size_t j, std::size_t place) {
    EXPECT_EQ(j, places.size());
    places.push_back(static_cast<std::uint16_t>(place));
  });
  return places;
}

TEST(Places, ComeBack) {
  for (const std::size_t elements : {1U, 2U, 3U, 7U, 64U, 100U, 1000U, 4097U, 32768U})
    for (const std::size_t count : {std::size_t{1}, std::size_t{2}, elements / 100, elements / 7, elements / 2, elements / 2 + 1,
                                    elements - 1, elements}) {
      if (count == 0 || count > elements) continue;
      Places last(count);
      std::iota(last.begin(), last.end(), static_cast<std::uint16_t>(elements - count));
      for (const Places& places : {some_places(count, elements, 1), some_places(count, elements, 2), some_places(count, count, 1), last}) {
        const auto code = written(places, elements);
        ASSERT_TRUE(PlaceCode(count, elements).check(code)) << count << " of " << elements;
        ASSERT_EQ(read(code, count, elements), places) << count << " of " << elements;
        const auto n = static_cast<double>(elements), k = static_cast<double>(count);
        ASSERT_LE(8 * static_cast<double>(code.size()), k * (2 + std::log2(n / k)) + 16) << "bytes of two strings are rounded up";
      }
    }
}

TEST(Places, OfNothingTakeNothing) {
  EXPECT_EQ(PlaceCode(0, 0).bytes(), 0U);
  EXPECT_EQ(PlaceCode(0, 100).bytes(), 0U);
  EXPECT_FALSE(PlaceCode(0, 0).check({}));
}

TEST(Places, ZerosStandForNone) {
  const PlaceCode format(5, 100);
  EXPECT_FALSE(format.check(std::vector<std::byte>(format.bytes())));
}

// One code is one set of places: whatever bytes pass are what writing their places gives.
TEST(Places, SpoiltOnesAreRefusedOrAreOthers) {
  using Numbers = std::pair<std::size_t, std::size_t>;
  for (const auto& [count, elements] : std::vector<Numbers>{{1, 1}, {3, 10}, {5, 100}, {7, 7}, {40, 101}, {33, 3000}}) {
    const auto good = written(some_places(count, elements, 3), elements);
    const PlaceCode format(count, elements);
    std::mt19937 random(4);
    std::size_t refused = 0;
    for (std::size_t trial = 0; trial < 3000; ++trial) {
      auto code = good;
      const std::size_t first = trial % (8 * code.size());
      code[first / 8] ^= std::byte{1} << first % 8;
      if (trial >= 8 * code.size())
        for (std::size_t bits = random() % 3 + 1; bits > 0; --bits) code[random() % code.size()] ^= std::byte{1} << random() % 8;
      try {
        if (format.check(code)) { ASSERT_EQ(written(read(code, count, elements), elements), code); }
      } catch (const PayloadError&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 0U) << count << " of " << elements;
  }
}

}  // namespace
}  // namespace thinwire
