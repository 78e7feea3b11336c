#include "kernels/rounding.h"

#include <cmath>

#include "core/random.h"
#include "kernels/every_target.h"
#include "kernels/fields.h"
#include "kernels/inputs.h"

namespace thinwire::kernels {
namespace {

class RoundingTest : public EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, RoundingTest, all_targets(), target_name);

std::vector<std::uint32_t> words_for(std::size_t n, std::array<std::uint32_t, 4> counter = {1, 2, 3, 4}) {
  std::vector<std::uint32_t> words(n);
  random_words(counter, {5, 6}, words);
  return words;
}

TEST_P(RoundingTest, WordsAreThoseOfPhiloxInGroupsOf64) {
  for (const std::size_t n : kSizes) {
    const std::array<std::uint32_t, 4> counter = {0xfffffff0U, 0x80000001U, 7, 0xdeadbeefU};  // the first word overflows
    const std::vector<std::uint32_t> words = words_for(n, counter);
    for (std::size_t i = 0; i < n; ++i) {
      Philox::Block block = counter;
      block[0] += static_cast<std::uint32_t>(i / 64 * 16 + i % 16);
      ASSERT_EQ(words[i], Philox::generate(block, {5, 6})[i % 64 / 16]) << i << " of " << n;
    }
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

}  // namespace
}  // namespace thinwire::kernels
