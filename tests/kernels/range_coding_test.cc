#include "kernels/range_coding.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/every_target.h"

namespace thinwire::kernels {
namespace {

using Values = std::vector<std::uint8_t>;
using Words = std::vector<std::uint16_t>;

struct Frequencies {
  std::vector<std::uint32_t> of = std::vector<std::uint32_t>(256);
  std::span<const std::uint32_t, 256> all() const { return std::span<const std::uint32_t, 256>(of.data(), 256); }
  std::uint32_t begin(std::size_t value) const { return std::accumulate(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(value), 0U); }
};
// Of so many values at random places, some of them often.
Frequencies random_frequencies(std::mt19937& random, std::size_t values) {
  Frequencies frequencies;
  std::vector<std::size_t> places(256);
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::shuffle(places.begin(), places.end(), random);
  std::uint32_t left = kFrequencySum - static_cast<std::uint32_t>(values);
  for (std::size_t i = 0; i < values; ++i) {
    const std::uint32_t more = i + 1 == values ? left : static_cast<std::uint32_t>(random()) % (left / 2 + 1);
    frequencies.of[places[i]] = 1 + more;
    left -= more;
  }
  return frequencies;
}
Values random_values(std::mt19937& random, const Frequencies& frequencies, std::size_t n) {
  std::discrete_distribution<unsigned> pick(frequencies.of.begin(), frequencies.of.end());
  Values values(n);
  for (std::uint8_t& value : values) value = static_cast<std::uint8_t>(pick(random));
  return values;
}

// As Duda has it, with a division; words in the order that they are given off in.
void put_plainly(const Frequencies& frequencies, std::uint32_t& state, Words& given_off, std::uint8_t value) {
  const std::uint64_t f = frequencies.of[value];
  std::uint64_t x = state;
  if (x >= f << 19) {
    given_off.push_back(static_cast<std::uint16_t>(x));
    x >>= 16;
  }
  state = static_cast<std::uint32_t>(x / f * kFrequencySum + x % f + frequencies.begin(value));
}

class RangeCodingTest : public EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, RangeCodingTest, all_targets(), target_name);

struct ValueRun {
  Frequencies frequencies;
  Values values;
};
std::vector<ValueRun> random_runs(std::mt19937& random) {
  std::vector<ValueRun> runs;
  for (const std::size_t values : {1, 2, 3, 17, 100, 256})
    for (const std::size_t n : {0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200}) {
      runs.push_back({random_frequencies(random, values), {}});
      runs.back().values = random_values(random, runs.back().frequencies, n);
    }
  return runs;
}
Values with_room(const Values& values) {
  Values longer(values);
  longer.resize(values.size() + kRangeLanes, 0x5A);
  return longer;
}

TEST_P(RangeCodingTest, PutsAsDivisionsDoAndTakesItBack) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 20; ++trial) {
    const std::vector<ValueRun> runs = random_runs(random);
    RangeStates first;
    for (std::uint32_t& state : first) state = kLeastState + static_cast<std::uint32_t>(random()) % (kLeastState << (random() % 16));
    RangeStates plain = first, states = first;
    Words expected, words(5000);
    std::uint16_t* const end = words.data() + words.size() - kRangeReadsBeyond / sizeof(std::uint16_t);
    std::uint16_t* next = end;
    for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
      for (std::size_t i = run->values.size(); i-- > 0;) put_plainly(run->frequencies, plain[i % kRangeLanes], expected, run->values[i]);
      const Values values = with_room(run->values);
      next = range_put_run(range_table_of(run->frequencies.all()), states, next, std::span(values).first(run->values.size()));
      ASSERT_EQ(states, plain) << run->values.size();
    }
    std::reverse(expected.begin(), expected.end());
    ASSERT_EQ(Words(next, end), expected);

    const auto* at = reinterpret_cast<const std::byte*>(next);
    const auto* const last = reinterpret_cast<const std::byte*>(end);
    for (const ValueRun& run : runs) {
      Values taken = with_room(Values(run.values.size()));
      at = range_take_run(range_table_of(run.frequencies.all()), states, at, last, std::span(taken).first(run.values.size()));
      taken.resize(run.values.size());
      ASSERT_EQ(taken, run.values);
    }
    EXPECT_EQ(at, last);
    EXPECT_EQ(states, first);
  }
}

TEST_P(RangeCodingTest, OneStateIsPutAndTakenAsLanesAre) {
  std::mt19937 random(5);
  const Frequencies frequencies = random_frequencies(random, 30);
  const RangeTable table = range_table_of(frequencies.all());
  const Values values = random_values(random, frequencies, 1000), longer = with_room(values);
  RangeStates lanes, states;
  lanes.fill(1U << 16);
  states = lanes;
  Words words(2000), others(2000);
  std::uint16_t* const end = words.data() + words.size() - kRangeReadsBeyond / sizeof(std::uint16_t);
  std::uint16_t* const front = range_put_run(table, lanes, end, std::span(longer).first(values.size()));
  std::uint16_t* const other_end = others.data() + others.size() - kRangeReadsBeyond / sizeof(std::uint16_t);
  std::uint16_t* next = other_end;
  for (std::size_t i = values.size(); i-- > 0;) range_put(table, states[i % kRangeLanes], next, values[i]);
  EXPECT_EQ(states, lanes);
  ASSERT_EQ(Words(next, other_end), Words(front, end));
  const auto* at = reinterpret_cast<const std::byte*>(next);
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(range_take(table, states[i % kRangeLanes], at), values[i]);
  EXPECT_EQ(at, reinterpret_cast<const std::byte*>(other_end));
}

TEST(RangeTableTest, DividesExactly) {
  for (std::uint32_t f = 1; f < kFrequencySum; ++f) {
    Frequencies frequencies;
    frequencies.of[3] = kFrequencySum - f;
    frequencies.of[7] = f;
    const RangeTable table = range_table_of(frequencies.all());
    const std::uint32_t limit = f << 19, least = kLeastState / f + 1;
    for (const std::uint32_t x : {least * f, least * f - 1, least * f + 1, limit / 2 / f * f, limit / 2 / f * f + 1, limit / 2 / f * f + f - 1, limit - 1, limit - f}) {
      if (x < kLeastState || x >= limit) continue;
      std::uint16_t words[2], *next = words + 1;
      std::uint32_t state = x;
      range_put(table, state, next, 7);
      ASSERT_EQ(next, words + 1);
      ASSERT_EQ(state, x / f * kFrequencySum + x % f + kFrequencySum - f) << x << " / " << f;
    }
  }
}

// Words may begin at any byte.
TEST_P(RangeCodingTest, StopsSoonAfterTheEnd) {
  std::mt19937 random(8);
  const RangeTable table = range_table_of(random_frequencies(random, 200).all());
  for (std::size_t length = 0; length < 100; ++length) {
    std::vector<std::byte> words(1 + length + kRangeReadsBeyond);  // of which the sanitizers see what is read beyond
    for (std::byte& byte : words) byte = static_cast<std::byte>(random());
    RangeStates states;
    states.fill(kLeastState);
    Values values(3000 + kRangeLanes);
    const std::byte* const begin = words.data() + 1;
    EXPECT_GT(range_take_run(table, states, begin, begin + length, std::span(values).first(3000)), begin + length);
    for (const std::uint32_t state : states) EXPECT_TRUE(state >= kLeastState && state >> 31 == 0);
  }
}

}  // namespace
}  // namespace thinwire::kernels
