#include "kernels/rounding.h"

#include <bit>
#include <cmath>

#include "kernels/codes.h"
#include "kernels/every_target.h"
#include "kernels/fields.h"
#include "kernels/inputs.h"

namespace thinwire::kernels {
namespace {

using Block = std::array<std::uint32_t, 4>;

// By its definition, one block after another.
Block philox(Block counter, std::array<std::uint32_t, 2> key, int rounds = kPhiloxRounds) {
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t even = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t odd = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(odd),
               static_cast<std::uint32_t>(even >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(even)};
    key = {key[0] + 0x9E3779B9U, key[1] + 0xBB67AE85U};
  }
  return counter;
}

// Known answers of the authors' Random123 library.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t f = 0xffffffff;
  EXPECT_EQ(philox({f, f, f, f}, {f, f}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));

  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}, kRoundingPhiloxRounds), (Block{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  EXPECT_EQ(philox({f, f, f, f}, {f, f}, kRoundingPhiloxRounds), (Block{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, kRoundingPhiloxRounds),
            (Block{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}));
}

// Of a sequence, in groups of 64.
std::uint32_t philox_word(std::size_t i, Block counter, int rounds) {
  counter[0] += static_cast<std::uint32_t>(i / 64 * 16 + i % 16);
  return philox(counter, {5, 6}, rounds)[i % 64 / 16];
}

class RoundingTest : public EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, RoundingTest, all_targets(), target_name);

std::vector<std::uint32_t> random_words_for(std::size_t n, Block counter) {
  std::vector<std::uint32_t> words(n);
  random_words(counter, {5, 6}, words);
  return words;
}
std::vector<std::uint32_t> words_for(std::size_t n) {
  std::vector<std::uint32_t> words(n);
  rounding_words({1, 2, 3, 4}, {5, 6}, 0, words);
  return words;
}

TEST_P(RoundingTest, WordsAreThoseOfPhiloxInGroupsOf64) {
  for (const std::size_t n : kSizes) {
    const Block counter = {0xfffffff0U, 0x80000001U, 7, 0xdeadbeefU};  // the first word overflows
    const std::vector<std::uint32_t> words = random_words_for(n, counter);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(words[i], philox_word(i, counter, kPhiloxRounds)) << i << " of " << n;
  }
}

TEST_P(RoundingTest, AWordDecidesAboutTwoValuesTurnedForTheSecond) {
  const Block counter = {0xfffffff0U, 0x80000001U, 7, 0xdeadbeefU};
  std::vector<std::uint32_t> drawn(70'000);
  for (std::size_t i = 0; i < drawn.size(); ++i) drawn[i] = philox_word(i, counter, kRoundingPhiloxRounds);
  for (const std::size_t first : {0, 16, 112, 128, 1024, 1040})
    for (const std::size_t n : kSizes) {
      Buffer<std::uint32_t> words(n, 1);
      rounding_words(counter, {5, 6}, first, words.span());
      const std::vector<std::uint32_t> found = words.elements();
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t value = first + i;
        const std::uint32_t word = drawn[value / 32 * 16 + value % 16];
        ASSERT_EQ(found[i], value % 32 < 16 ? word : std::rotl(word, 16)) << i << " of " << n << " from " << first;
      }
      ASSERT_TRUE(words.untouched_before());
    }
}

TEST_P(RoundingTest, RoundsUpWhereTheDrawnNumberIsBelowTheFraction) {
  for (const std::size_t n : kSizes) {
    const std::vector<float> values = normal_values(n);
    const std::vector<std::uint32_t> words = words_for(n);
    Buffer<std::int32_t> levels(n, 1);
    round_randomly(values, 3.7F, 5, words, levels.span());
    const std::vector<std::int32_t> found = levels.elements();
    for (std::size_t i = 0; i < n; ++i) {
      const float x = values[i] * 3.7F;
      const double drawn = static_cast<double>(words[i] >> 8) / (1 << 24);
      const bool up = drawn < static_cast<double>(x) - std::floor(static_cast<double>(x));
      const int expected = std::clamp(static_cast<int>(std::floor(x)) + (up ? 1 : 0), -5, 5);
      ASSERT_EQ(found[i], expected) << values[i];
    }
    ASSERT_TRUE(levels.untouched_before());
  }
}

TEST_P(RoundingTest, WholeNumbersStay) {
  std::vector<float> values;
  for (int i = -100; i <= 100; ++i) values.push_back(static_cast<float>(i) * 0.25F);
  std::vector<std::int32_t> levels(values.size());
  round_randomly(values, 4.0F, 127, words_for(values.size()), levels);
  for (int i = -100; i <= 100; ++i) EXPECT_EQ(levels[static_cast<std::size_t>(i + 100)], i);
}

TEST(FieldsTest, SumsOfEveryFieldComeBack) {
  constexpr std::int32_t kWorkers = 5, kLimit = 7;
  const std::vector<Field> fields = {{0, 7, kWorkers * kLimit}, {7, 7, kWorkers * kLimit}, {14, 7, kWorkers * kLimit}, {21, 11, kWorkers * 200}};
  std::uint32_t biases = 0;
  for (const Field& field : fields) biases += field.bias();
  std::mt19937 random(1);
  constexpr std::size_t kWords = 1000;
  std::vector<std::int32_t> words(kWords);
  std::vector<std::vector<std::int32_t>> sums(fields.size(), std::vector<std::int32_t>(kWords));
  for (int worker = 0; worker < kWorkers; ++worker)
    for (std::size_t f = 0; f < fields.size(); ++f) {
      std::vector<std::int32_t> levels(kWords);
      const std::int32_t limit = fields[f].limit / kWorkers;
      for (std::size_t i = 0; i < kWords; ++i) {
        levels[i] = i < 2 ? (i == 0 ? limit : -limit) : static_cast<std::int32_t>(random() % static_cast<unsigned>(2 * limit + 1)) - limit;
        sums[f][i] += levels[i];
      }
      add_field(levels, fields[f], words);
    }
  for (std::size_t f = 0; f < fields.size(); ++f) {
    std::vector<std::int32_t> taken(kWords);
    take_field(words, fields[f], biases, taken);
    EXPECT_EQ(taken, sums[f]) << "field " << f;
  }
}

TEST(FieldsTest, SpoiltWordsStayWithinTheLimit) {
  std::vector<std::int32_t> words = {-1, 0x7fffffff, 0x12345678}, levels(3);
  take_field(words, {4, 7, 33}, 33 << 4, levels);
  for (const std::int32_t level : levels) EXPECT_LE(std::abs(level), 33);
}

// Uneven levels of any number; values between them, on them and beyond them.
TEST_P(RoundingTest, BetweenAnyLevelsTheUpperOneWhereTheDrawnNumberIsBelowTheShare) {
  for (const std::size_t n : kSizes)
    for (const std::size_t count : {2, 3, 4, 7, 16, 31, 256}) {
      if (n > 5000 && count > 4) continue;
      std::vector<float> levels;
      for (std::size_t i = 0; i < count; ++i) levels.push_back(-1.0F + static_cast<float>(i * i) / 100 + static_cast<float>(i) / 8);
      std::vector<float> values = normal_values(n);
      for (std::size_t i = 0; i < n; i += 3) values[i] = levels[i % count];
      const std::vector<std::uint32_t> words = words_for(n);
      const auto bits = static_cast<int>(std::bit_width(count - 1));
      Buffer<std::byte> packed(packed_bytes(n, bits), 1);
      assign_randomly(values, levels, bits, words, packed.span());
      std::vector<std::uint8_t> codes(n);
      unpack(packed.span(), bits, codes);
      for (std::size_t i = 0; i < n; ++i) {
        std::size_t below = 0;
        while (below + 1 < count && values[i] >= levels[below + 1]) ++below;
        const float inverse_gap = below + 1 < count ? 1 / (levels[below + 1] - levels[below]) : 0;
        const float share = (values[i] - levels[below]) * inverse_gap;
        const std::size_t expected = below + (static_cast<float>(words[i] >> 8) * 0x1p-24F < share ? 1 : 0);
        ASSERT_EQ(codes[i], expected) << values[i] << " among " << count << " levels, " << i << " of " << n;
        if (i % 3 == 0) { ASSERT_EQ(levels[codes[i]], values[i]); }
      }
    }
}

// Odd and even numbers of levels; values between them, on them, far beyond them, and tiny.
TEST_P(RoundingTest, BetweenEvenLevelsAsInFixedPoint) {
  for (const std::size_t n : kSizes)
    for (const int largest : {1, 2, 3, 6, 14, 15, 200, 254, 255}) {
      if (n > 5000 && largest > 14) continue;
      const int bits = std::bit_width(static_cast<unsigned>(largest));
      std::vector<float> values = normal_values(n);
      for (std::size_t i = 0; i < n; ++i) {
        if (i % 3 == 0) values[i] = (static_cast<float>(i % static_cast<std::size_t>(largest + 1)) - 0.5F * static_cast<float>(largest)) * 0.25F;
        if (i % 5 == 1) values[i] *= i % 2 == 0 ? 1e30F : 1e-30F;
      }
      const std::vector<std::uint32_t> words = words_for(n);
      Buffer<std::byte> packed(packed_bytes(n, bits), 1);
      assign_randomly(values, EvenLevels{largest, 4.0F}, bits, words, packed.span());
      std::vector<std::uint8_t> codes(n);
      unpack(packed.span(), bits, codes);
      for (std::size_t i = 0; i < n; ++i) {
        const double outermost = 0.5 * largest, one = std::ldexp(1.0, 30 - bits);
        const double place = std::nearbyint(std::clamp(4.0 * static_cast<double>(values[i]), -outermost, outermost) * one) / one + outermost;
        const double drawn = static_cast<double>(words[i] >> (2 + bits)) / one;
        ASSERT_EQ(codes[i], std::floor(place) + (drawn < place - std::floor(place) ? 1 : 0)) << values[i] << ", up to " << largest;
        if (i % 3 == 0 && i % 5 != 1) { ASSERT_EQ(codes[i], i % static_cast<std::size_t>(largest + 1)); }
      }
      ASSERT_TRUE(packed.untouched_before());
      if (largest % 2 != 0) continue;
      assign_randomly(values, EvenLevels{largest, 0.0F}, bits, words, packed.span());
      unpack(packed.span(), bits, codes);
      ASSERT_TRUE(std::ranges::all_of(codes, [&](int code) { return code == largest / 2; }));
    }
}

// The place of a value among floats, which are numbered from the lowest one on: its lower neighbour, and the share of the way to the next.
struct Place {
  int below;
  double share;
};
Place place_among(const std::vector<double>& floats, double value) {
  if (value >= floats.back()) return {static_cast<int>(floats.size()) - 1, 0};
  if (value < floats.front()) return {0, 0};
  const auto above = std::ranges::upper_bound(floats, value);
  return {static_cast<int>(above - floats.begin()) - 1, (value - above[-1]) / (above[0] - above[-1])};
}

// Up where the drawn number is below the share, of which as many bits count as a float's mantissa leaves.
TEST_P(RoundingTest, BetweenFewBitFloatsTheUpperOneWhereTheDrawnNumberIsBelowTheShare) {
  const FewBitFloats kinds[] = {{0, -126, 127}, {0, -6, 7}, {0, 0, 1}, {3, -6, 126}, {1, 0, 7}};
  for (const FewBitFloats& floats : kinds)
    for (const std::size_t n : kSizes) {
      std::vector<double> levels = {0.0};
      for (const double magnitude : magnitudes_of(floats)) {
        if (magnitude == 0) continue;
        levels.push_back(magnitude);
        levels.insert(levels.begin(), -magnitude);
      }
      std::vector<float> values = normal_values(n);
      for (std::size_t i = 0; i < n; ++i) {
        if (i % 5 == 0) values[i] = static_cast<float>(levels[i / 5 % levels.size()]);
        else values[i] *= static_cast<float>(0.7 * levels.back());
        if (i % 7 == 0) values[i] = std::ldexp(values[i], -static_cast<int>(i % 40));
        if (i % 11 == 0) values[i] = i % 2 == 0 ? -0.0F : 0.0F;
        if (i % 17 == 0) values[i] = 1e-40F;
        if (i % 13 == 0) values[i] = static_cast<float>(levels.back()) * 1.0000001F * (i % 2 == 0 ? -1.0F : 1.0F);
      }
      const std::vector<std::uint32_t> words = words_for(n);
      const int bits = std::bit_width(static_cast<unsigned>(2 * floats.count)), drawn_bits = 23 - floats.mantissa_bits;
      Buffer<std::byte> packed(packed_bytes(n, bits), 1);
      assign_randomly(values, floats, bits, words, packed.span());
      ASSERT_TRUE(packed.untouched_before());
      std::vector<std::uint8_t> codes(n);
      unpack(packed.span(), bits, codes);
      for (std::size_t i = 0; i < n; ++i) {
        const auto [below, share] = place_among(levels, static_cast<double>(values[i]));
        const double one = std::ldexp(1.0, drawn_bits), drawn = static_cast<double>(words[i] >> (32 - drawn_bits));
        const double way = std::nearbyint(share * one);  // what is below the least float may have more bits
        ASSERT_EQ(codes[i], below + (drawn < way ? 1 : 0)) << values[i] << " among floats of " << floats.mantissa_bits << " bits, " << i << " of " << n;
      }
    }
}

}  // namespace
}  // namespace thinwire::kernels
