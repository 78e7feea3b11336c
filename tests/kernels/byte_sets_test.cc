#include "kernels/byte_sets.h"

#include <random>
#include <set>

#include "kernels/every_target.h"

namespace thinwire::kernels {
namespace {

class ByteSetsTest : public EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, ByteSetsTest, all_targets(), target_name);

// Takes out of values what `members` has, one by one.
std::vector<std::uint8_t> taken_out(std::vector<std::uint8_t>& values, const std::set<std::uint8_t>& members, std::uint8_t instead) {
  std::vector<std::uint8_t> taken;
  for (std::uint8_t& value : values) {
    if (!members.contains(value)) continue;
    taken.push_back(value);
    value = instead;
  }
  return taken;
}

TEST_P(ByteSetsTest, TakesOutWhatIsInTheSet) {
  std::mt19937 random(3);
  for (const std::size_t members : {0, 1, 5, 100, 256}) {
    for (std::size_t n = 0; n < 70; ++n) {
      ByteSet set;
      std::set<std::uint8_t> plain;
      while (plain.size() < members) plain.insert(static_cast<std::uint8_t>(random()));
      for (const std::uint8_t member : plain) set.insert(member);
      std::vector<std::uint8_t> values(n + 1);
      for (std::uint8_t& value : values) value = static_cast<std::uint8_t>(random());
      std::vector<std::uint8_t> expected(values.begin() + 1, values.end()), taken(n + 1, 77);
      const std::vector<std::uint8_t> expected_taken = taken_out(expected, plain, 0xFF);
      const std::uint8_t before = values[0];
      ASSERT_EQ(take_out(std::span(values).subspan(1), set, 0xFF, taken.data()), expected_taken.size());
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), values.begin() + 1));
      EXPECT_TRUE(std::equal(expected_taken.begin(), expected_taken.end(), taken.begin()));
      EXPECT_EQ(taken[n], 77);
      EXPECT_EQ(values[0], before);
    }
  }
}

TEST_P(ByteSetsTest, HasWhatWasInserted) {
  ByteSet odd;
  for (unsigned value = 1; value < 256; value += 2) odd.insert(static_cast<std::uint8_t>(value));
  for (unsigned value = 0; value < 256; ++value) EXPECT_EQ(odd.contains(static_cast<std::uint8_t>(value)), value % 2 == 1);
}

}  // namespace
}  // namespace thinwire::kernels
