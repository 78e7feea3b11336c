#include "kernels/codes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <type_traits>

#include "kernels/committing.h"
#include "kernels/every_target.h"
#include "kernels/inputs.h"
#include "kernels/opening.h"

namespace thinwire::kernels {
namespace {

class CodesTest : public EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, CodesTest, all_targets(), target_name);

// Where the header says bit k of element e's code is, in bits from the first: groups take 16 * bits bits.
std::size_t bit_place(std::size_t n, std::size_t bits, std::size_t element, std::size_t k) {
  const std::size_t group = element / 16;
  const std::size_t in_group = std::min<std::size_t>(16, n - 16 * group);
  return group * 16 * bits + k * in_group + element % 16;
}

std::vector<std::byte> packed_bit_by_bit(const std::vector<std::uint8_t>& codes, int bits) {
  std::vector<std::byte> packed(packed_bytes(codes.size(), bits));
  for (std::size_t e = 0; e < codes.size(); ++e) {
    for (int k = 0; k < bits; ++k) {
      const std::size_t place = bit_place(codes.size(), static_cast<std::size_t>(bits), e, static_cast<std::size_t>(k));
      if (codes[e] >> k & 1) packed[place / 8] |= std::byte{1} << (place % 8);
    }
  }
  return packed;
}

std::vector<std::uint8_t> random_codes(std::size_t n, int bits) {
  std::mt19937 random(static_cast<std::uint32_t>(n) + static_cast<std::uint32_t>(bits));
  std::vector<std::uint8_t> codes(n);
  for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(random() & ((1U << bits) - 1));
  return codes;
}

// Calls check(n, bits, offset) for every size, up to `most_bits` bits, and both alignments.
template <class Check>
void for_each_shape(int most_bits, const Check& check) {
  for (const std::size_t n : kSizes) {
    for (int bits = 1; bits <= most_bits; ++bits) {
      for (const std::size_t offset : {0, 1}) {
        SCOPED_TRACE("n=" + std::to_string(n) + ", bits=" + std::to_string(bits) + (offset ? ", unaligned" : ""));
        check(n, bits, offset);
      }
    }
  }
}

TEST(PackedLayoutTest, IsWhatTheHeaderSays) {
  std::vector<std::uint8_t> codes(18, 0);
  codes[0] = 1;   // bit 0 of word 0
  codes[9] = 2;   // bit 9 of word 1
  codes[17] = 3;  // of the tail of two: bits 1 and 3
  std::vector<std::byte> packed(packed_bytes(18, 2), std::byte{0xAA});
  pack(codes, 2, packed);
  const std::vector<std::byte> expected = {std::byte{1}, std::byte{0}, std::byte{0}, std::byte{2}, std::byte{0b1010}};
  EXPECT_EQ(packed, expected);
}

TEST_P(CodesTest, PackWritesEveryBitWhereTheHeaderSays) {
  for_each_shape(kMaxCodeBits, [](std::size_t n, int bits, std::size_t offset) {
    const Buffer<std::uint8_t> codes(random_codes(n, bits), offset);
    Buffer<std::byte> packed(packed_bytes(n, bits), offset);
    pack(codes.span(), bits, packed.span());
    EXPECT_EQ(packed.elements(), packed_bit_by_bit(codes.elements(), bits));
    EXPECT_TRUE(packed.untouched_before());
  });
}

TEST_P(CodesTest, UnpackReadsWhatWasPacked) {
  for_each_shape(kMaxCodeBits, [](std::size_t n, int bits, std::size_t offset) {
    const std::vector<std::uint8_t> expected = random_codes(n, bits);
    const Buffer<std::byte> packed(packed_bit_by_bit(expected, bits), offset);
    Buffer<std::uint8_t> codes(n, offset);
    unpack(packed.span(), bits, codes.span());
    EXPECT_EQ(codes.elements(), expected);
    EXPECT_TRUE(codes.untouched_before());
  });
}

TEST_P(CodesTest, EveryLengthOfTailPacksAndUnpacks) {
  for (std::size_t n = 0; n <= 48; ++n) {
    for (int bits = 1; bits <= kMaxCodeBits; ++bits) {
      const std::vector<std::uint8_t> codes = random_codes(n, bits);
      std::vector<std::byte> packed(packed_bytes(n, bits));
      std::vector<std::uint8_t> again(n);
      pack(codes, bits, packed);
      unpack(packed, bits, again);
      EXPECT_EQ(packed, packed_bit_by_bit(codes, bits)) << n << ' ' << bits;
      EXPECT_EQ(again, codes) << n << ' ' << bits;
    }
  }
}

std::vector<float> random_table(int bits) { return normal_values(std::size_t{1} << bits, 5); }

std::vector<std::uint32_t> bits_of(std::span<const float> values) {
  std::vector<std::uint32_t> bits;
  for (const float x : values) bits.push_back(std::bit_cast<std::uint32_t>(x));
  return bits;
}

// Checks one of the look_up functions against `expected(old value, entry)`.
using LookUp = void(std::span<const std::byte>, int, std::span<const float>, std::span<float>);
template <class Expected>
void expect_look_up(LookUp& look_up_function, const Expected& expected) {
  for_each_shape(kMaxCodeBits, [&](std::size_t n, int bits, std::size_t offset) {
    const std::vector<std::uint8_t> codes = random_codes(n, bits);
    const std::vector<float> table = random_table(bits);
    const std::vector<float> before = normal_values(n, 6);
    std::vector<float> after(n);
    for (std::size_t i = 0; i < n; ++i) after[i] = expected(before[i], table[codes[i]]);

    const Buffer<std::byte> packed(packed_bit_by_bit(codes, bits), offset);
    Buffer<float> out(before, offset);
    look_up_function(packed.span(), bits, table, out.span());
    EXPECT_EQ(bits_of(out.span()), bits_of(after));
    EXPECT_TRUE(out.untouched_before());
  });
}

TEST_P(CodesTest, LookUpWritesEntries) {
  expect_look_up(look_up, [](float, float entry) { return entry; });
}
TEST_P(CodesTest, LookUpAddAddsEntries) {
  expect_look_up(look_up_add, [](float old, float entry) { return old + entry; });
}

// Evenly spaced tables give what a table of the same entries gives; the largest code is beyond them and counts as the last.
using Compute = void(std::span<const std::byte>, int, const Levels&, std::span<float>);
void expect_computed(Compute& compute, LookUp& look_up_function) {
  for_each_shape(kMaxCodeBits, [&](std::size_t n, int bits, std::size_t offset) {
    if (bits < 2) return;
    const Levels levels{(1 << bits) - 2, 0.7F};
    std::vector<float> table;
    for (int code = 0; code < 1 << bits; ++code)
      table.push_back(static_cast<float>(std::min(code, levels.largest) - levels.largest / 2) * levels.step);
    const std::vector<std::byte> packed = packed_bit_by_bit(random_codes(n, bits), bits);
    Buffer<float> looked_up(normal_values(n, 6), offset), computed(normal_values(n, 6), offset);
    look_up_function(packed, bits, table, looked_up.span());
    compute(packed, bits, levels, computed.span());
    EXPECT_EQ(bits_of(computed.span()), bits_of(looked_up.span()));
    EXPECT_TRUE(computed.untouched_before());
  });
}

TEST_P(CodesTest, EvenlySpacedEntriesAreComputed) {
  expect_computed(look_up, look_up);
  expect_computed(look_up_add, look_up_add);
}

// Codes that differ between workers, with a table each, and with evenly spaced levels each.
struct WorkersCodes {
  WorkersCodes(std::size_t workers, std::size_t n, int bits, std::size_t offset) {
    for (std::size_t w = 0; w < workers; ++w) {
      std::vector<std::uint8_t> codes = random_codes(n, bits);
      if (n > 0) std::rotate(codes.begin(), codes.begin() + static_cast<std::ptrdiff_t>(w % n), codes.end());
      packed.emplace_back(packed_bit_by_bit(codes, bits), offset);
      tables.push_back(normal_values(std::size_t{1} << bits, 20 + static_cast<std::uint32_t>(w)));
      tables.back()[0] = -0.0F;
    }
    for (std::size_t w = 0; w < workers; ++w) {
      coded.push_back({packed[w].span(), tables[w]});
      levels.push_back({packed[w].span(), {(1 << bits) - 2, tables[w].back()}});
    }
  }
  std::vector<Buffer<std::byte>> packed;
  std::vector<std::vector<float>> tables;
  std::vector<Coded> coded;
  std::vector<CodedLevels> levels;
};
template <class Check>
void for_each_workers(const Check& check) {
  for (const std::size_t workers : {1, 2, 3, 5, 15}) {  // 15: eight, four, two and one at once
    for_each_shape(kMaxCodeBits, [&](std::size_t n, int bits, std::size_t offset) {
      if (workers > 5 && n > 5000) return;
      SCOPED_TRACE(std::to_string(workers) + " workers");
      check(WorkersCodes(workers, n, bits, offset), n, bits, offset);
    });
  }
}

// The first two, then the next two, and so on, as one after another is looked up.
template <class Codes>
std::vector<float> summed_by_pairs(const std::vector<Codes>& codes, int bits, std::size_t n) {
  const auto looked_up = [&](const Codes& coded) {
    std::vector<float> values(n);
    if constexpr (std::is_same_v<Codes, Coded>) look_up(coded.packed, bits, coded.table, values);
    else look_up(coded.packed, bits, coded.levels, values);
    return values;
  };
  std::vector<float> sum;
  for (std::size_t w = 0; w < codes.size(); w += 2) {
    std::vector<float> pair = looked_up(codes[w]);
    if (w + 1 < codes.size()) std::ranges::transform(pair, looked_up(codes[w + 1]), pair.begin(), std::plus<float>());
    if (w == 0) sum = pair;
    else std::ranges::transform(sum, pair, sum.begin(), std::plus<float>());
  }
  return sum;
}

TEST_P(CodesTest, LookUpSumIsByPairsOfWorkers) {
  for_each_workers([](const WorkersCodes& workers, std::size_t n, int bits, std::size_t offset) {
    Buffer<float> actual(n, offset);
    look_up_sum(workers.coded, bits, actual.span());
    EXPECT_EQ(bits_of(actual.span()), bits_of(summed_by_pairs(workers.coded, bits, n)));
    EXPECT_TRUE(actual.untouched_before());
  });
}

TEST_P(CodesTest, LookUpSumOfLevelsIsByPairsOfWorkers) {
  for_each_workers([](const WorkersCodes& workers, std::size_t n, int bits, std::size_t offset) {
    if (bits < 2) return;
    Buffer<float> actual(n, offset);
    look_up_sum(workers.levels, bits, actual.span());
    EXPECT_EQ(bits_of(actual.span()), bits_of(summed_by_pairs(workers.levels, bits, n)));
    EXPECT_TRUE(actual.untouched_before());
  });
}

TEST_P(CodesTest, LookUpSumOfNobodyIsZero) {
  std::vector<float> sum(33, 1.0F);
  look_up_sum(std::span<const Coded>(), 2, sum);
  EXPECT_EQ(sum, std::vector<float>(33, 0.0F));
  look_up_sum(std::span<const CodedLevels>(), 2, sum);
  EXPECT_EQ(sum, std::vector<float>(33, 0.0F));
}

std::vector<float> even_thresholds(int bits) {
  std::vector<float> thresholds;
  const int clusters = 1 << bits;
  for (int t = 1; t < clusters; ++t) thresholds.push_back(0.4F * static_cast<float>(2 * t - clusters));
  return thresholds;
}

std::uint8_t code_of(float x, std::span<const float> thresholds) {
  return static_cast<std::uint8_t>(std::count_if(thresholds.begin(), thresholds.end(), [x](float t) { return x > t; }));
}

// The sums of each cluster in sixteen lanes, as the header promises, and in double precision.
struct ExpectedClusters {
  ExpectedClusters(std::span<const float> values, std::span<const float> thresholds) : sum(), in_double(), count() {
    std::vector<std::array<float, 16>> lanes(kMost);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint8_t code = code_of(values[i], thresholds);
      codes.push_back(code);
      lanes[code][i % 16] += values[i];
      in_double[code] += values[i];
      ++count[code];
    }
    for (std::size_t c = 0; c < kMost; ++c) {
      sum[c] = lanes[c][0];
      for (std::size_t lane = 1; lane < 16; ++lane) sum[c] += lanes[c][lane];
    }
  }
  static constexpr std::size_t kMost = std::size_t{1} << kMaxCodeBits;
  std::vector<std::uint8_t> codes;
  float sum[kMost];
  double in_double[kMost];
  std::uint32_t count[kMost];
};

void expect_assigned(const Buffer<float>& values, std::span<const float> thresholds, int bits, std::size_t offset) {
  const std::size_t n = values.span().size();
  const ExpectedClusters expected(values.span(), thresholds);
  Buffer<std::byte> packed(packed_bytes(n, bits), offset);
  const ClusterSums actual = assign(values.span(), thresholds, bits, packed.span());

  EXPECT_EQ(packed.elements(), packed_bit_by_bit(expected.codes, bits));
  EXPECT_EQ(bits_of(actual.sum), bits_of(expected.sum));
  EXPECT_TRUE(std::equal(std::begin(actual.count), std::end(actual.count), std::begin(expected.count)));
  EXPECT_TRUE(packed.untouched_before());
}

TEST_P(CodesTest, AssignCodesSumsAndCounts) {
  for_each_shape(kMaxCodeBits, [](std::size_t n, int bits, std::size_t offset) {
    for (const Content& content : finite_contents(n)) {
      SCOPED_TRACE(content.name);
      expect_assigned(Buffer<float>(content.values, offset), even_thresholds(bits), bits, offset);
    }
  });
}

TEST_P(CodesTest, AssignPutsAThresholdItselfBelow) {
  for (int bits = 1; bits <= kMaxCodeBits; ++bits) {
    const std::vector<float> thresholds = even_thresholds(bits);
    std::vector<float> values = thresholds;
    for (const float t : thresholds) values.push_back(std::nextafter(t, 1e9F));
    expect_assigned(Buffer<float>(values), thresholds, bits, 0);
  }
}

std::uint8_t nearest_code(float value, const std::vector<double>& magnitudes) {
  std::size_t best = 0;
  const double magnitude = std::min(std::abs(double{value}), 2 * magnitudes.back());  // beyond which differences are lost
  const auto distance = [&](std::size_t number) { return std::abs(magnitude - magnitudes[number]); };
  for (std::size_t number = 1; number < magnitudes.size(); ++number)
    if (distance(number) < distance(best) || (distance(number) == distance(best) && number % 2 == 0)) best = number;
  const auto count = magnitudes.size() - 1;
  return static_cast<std::uint8_t>(value < 0 ? count - best : count + best);
}

TEST_P(CodesTest, AssignFindsTheNearestFloatOfFewBits) {
  const FewBitFloats kinds[] = {whole_numbers(127), whole_numbers(7), whole_numbers(1), {3, -6, 126}, {2, -14, 123}, {1, 0, 7}, {1, -5, 6}, {4, -100, 127}};
  for (const FewBitFloats& floats : kinds) {
    SCOPED_TRACE(floats.count);
    const std::vector<double> magnitudes = magnitudes_of(floats);
    const auto largest = static_cast<float>(magnitudes.back());
    std::vector<float> values = {0.0F, -0.0F, 1e-45F, -1e-45F, 2 * largest, -2 * largest, 3e38F, -3e38F};
    for (std::size_t i = 0; i + 1 < magnitudes.size(); ++i) {
      const auto level = static_cast<float>(magnitudes[i]), middle = static_cast<float>((magnitudes[i] + magnitudes[i + 1]) / 2);
      for (const float sign : {1.0F, -1.0F})
        for (const float value : {level, middle, std::nextafter(middle, 0.0F), std::nextafter(middle, largest)}) values.push_back(sign * value);
    }
    for (const float value : normal_values(1003)) values.push_back(value * largest / 3);
    std::vector<std::uint8_t> expected;
    for (const float value : values) expected.push_back(nearest_code(value, magnitudes));
    for (int bits = static_cast<int>(std::bit_width(static_cast<unsigned>(2 * floats.count))); bits <= kMaxCodeBits; ++bits) {
      Buffer<std::byte> packed(packed_bytes(values.size(), bits), 1);
      assign(values, floats, bits, packed.span());
      EXPECT_EQ(packed.elements(), packed_bit_by_bit(expected, bits));
      EXPECT_TRUE(packed.untouched_before());
    }
  }
}

TEST_P(CodesTest, AssignLeavesPaddingOutWhereverZeroBelongs) {
  for (const float shift : {-100.0F, -1.0F, 0.0F, 100.0F}) {
    std::vector<float> thresholds = even_thresholds(3);
    for (float& t : thresholds) t += shift;
    expect_assigned(Buffer<float>(normal_values(21)), thresholds, 3, 0);
  }
}

TEST_P(CodesTest, AssignWithEqualThresholdsLeavesClustersEmpty) {
  expect_assigned(Buffer<float>(normal_values(100)), std::vector<float>{0.5F, 0.5F, 0.5F}, 2, 0);
  expect_assigned(Buffer<float>(std::vector<float>(100, -0.0F)), std::vector<float>{0.0F, 0.0F, 0.0F}, 2, 0);
}

TEST_P(CodesTest, AssignSumsAreCloseToDoublePrecision) {
  const std::vector<float> values = normal_values(32768);
  const std::vector<float> thresholds = {-1.0F, 0.0F, 1.0F};
  std::vector<std::byte> packed(packed_bytes(values.size(), 2));
  const ClusterSums actual = assign(values, thresholds, 2, packed);
  const ExpectedClusters expected(values, thresholds);
  for (std::size_t c = 0; c < 4; ++c) {
    EXPECT_NEAR(actual.sum[c], expected.in_double[c], 1e-5 * std::fabs(expected.in_double[c]));
  }
}

}  // namespace
}  // namespace thinwire::kernels
