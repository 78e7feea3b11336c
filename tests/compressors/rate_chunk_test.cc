#include "compressors/casq/rate_chunk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "compressors/rate_chunk_reference.h"
#include "core/aligned.h"
#include "kernels/every_target.h"
#include "sanitized.h"
#include "thinwire/errors.h"

namespace thinwire::casq {
namespace {

using Bytes = std::vector<std::byte>;

ChunkEncoder& encoder() {
  static const auto made = std::make_unique<ChunkEncoder>();
  return *made;
}
ChunkDecoder& decoder() {
  static const auto made = std::make_unique<ChunkDecoder>();
  return *made;
}

// What stands after the bytes that encode() may write shows whether it wrote more.
Bytes encode(std::span<const float> values, float step, std::span<float> residual = {}, bool past_caches = false) {
  constexpr std::size_t kGuards = 64;
  Bytes code(most_code_bytes(values.size()) + kGuards, std::byte{0xA5});
  const EncodedChunk encoded = encoder().encode(values, step, std::span(code).first(most_code_bytes(values.size())), residual, past_caches);
  EXPECT_TRUE(encoded.finite);
  EXPECT_LE(encoded.bytes, most_code_bytes(values.size()));
  EXPECT_TRUE(std::all_of(code.end() - kGuards, code.end(), [](std::byte b) { return b == std::byte{0xA5}; }));
  code.resize(encoded.bytes);
  return code;
}

std::vector<float> decode(const Bytes& code, std::size_t n, float step, float weight = 1) {
  std::vector<float> values(n, 99.0F);
  decoder().unpack(code, n).store(step, weight, values);
  return values;
}

// Blocks whose scales are far apart, with zeros in some of them, as gradients' are.
std::vector<float> mixture(std::size_t n, double spread, std::uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::exponential_distribution<double> exponential;
  std::vector<float> values(n);
  double scale = 1, zeros = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i % 128 == 0) {
      scale = std::exp(spread * normal(random));
      zeros = random() % 3 == 0 ? 0.6 : 0;
    }
    const bool zero = static_cast<double>(random() % 1000) < 1000 * zeros;
    values[i] = zero ? 0.0F : static_cast<float>((random() % 2 == 0 ? scale : -scale) * exponential(random));
  }
  return values;
}

struct Content {
  std::string name;
  std::vector<float> values;
};
std::vector<Content> contents(std::size_t n) {
  std::vector<Content> all = {{"zeros", std::vector<float>(n)},
                              {"constant", std::vector<float>(n, -0.75F)},
                              {"denormals", std::vector<float>(n, 1e-42F)},
                              {"alike", mixture(n, 0.1)},
                              {"mixed", mixture(n, 2)},
                              {"far apart", mixture(n, 5)},
                              {"largest", std::vector<float>(n, std::numeric_limits<float>::max())}};
  for (const float outlier : {40.0F, 300.0F, -32768.0F, 1e6F, 1e7F, std::numeric_limits<float>::max()}) {
    Content content{"outliers of " + std::to_string(outlier), mixture(n, 1)};
    for (std::size_t i = n / 2; i < n; i += 1001) content.values[i] = outlier;
    all.push_back(content);
  }
  return all;
}

const std::vector<std::size_t> kLengths = testing::kSanitized ? std::vector<std::size_t>{0, 1, 65, 129, 4097, 32768}
                                                              : std::vector<std::size_t>{0, 1, 7, 63, 64, 65, 127, 128, 129, 200, 4097, 32767, 32768};
const std::vector<float> kSteps = testing::kSanitized ? std::vector{kernels::kLeastStep, 0.1F, kernels::kLargestStep}
                                                      : std::vector{kernels::kLeastStep, 1e-3F, 0.1F, 1.0F, 7.0F, 1e4F, kernels::kLargestStep};

template <class Check>
void for_each_input(const Check& check) {
  for (const std::size_t n : kLengths)
    for (const Content& content : contents(n))
      for (const float step : kSteps) {
        SCOPED_TRACE(content.name + ", n=" + std::to_string(n) + ", step=" + std::to_string(step));
        check(content.values, step);
      }
}

void expect_same_bits(std::span<const float> actual, std::span<const float> expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(actual[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << "entry " << i << ": " << actual[i] << " instead of " << expected[i];
}

class RateChunkTest : public kernels::EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, RateChunkTest, kernels::all_targets(), kernels::target_name);

TEST_P(RateChunkTest, DecodesToWhatTheReferenceDecodesTo) {
  for_each_input([](std::span<const float> values, float step) {
    const Bytes code = encode(values, step);
    expect_same_bits(decode(code, values.size(), step), reference::decode(code, values.size(), step));
  });
}

TEST_P(RateChunkTest, EveryEntryIsWithinItsCell) {
  for_each_input([](std::span<const float> values, float step) {
    const std::vector<float> decoded = decode(encode(values, step), values.size(), step);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double error = std::fabs(double{values[i]} - decoded[i]);
      ASSERT_LE(error, 0.78 * step + 1e-6 * std::fabs(values[i])) << "entry " << i << " of value " << values[i] << ", decoded " << decoded[i];
      if (std::fabs(values[i]) < 0.59F * step) { ASSERT_TRUE(decoded[i] == 0 || decoded[i] == values[i]); }
    }
  });
}

TEST_P(RateChunkTest, LeavesTheResidual) {
  for_each_input([](std::span<const float> values, float step) {
    std::vector<float> residual(values.size(), 99.0F);
    const Bytes code = encode(values, step, residual);
    EXPECT_EQ(code, encode(values, step));
    const std::vector<float> decoded = decode(code, values.size(), step);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(residual[i], values[i] - decoded[i]) << "entry " << i;
    for (const std::size_t first : {0, 1}) {  // that begins with a line, and not
      AlignedFloats past_caches(first + values.size() + 1, 99.0F);
      EXPECT_EQ(code, encode(values, step, std::span(past_caches).subspan(first, values.size()), true));
      expect_same_bits(std::span(past_caches).subspan(first, values.size()), residual);
      EXPECT_EQ(past_caches.back(), 99.0F);
    }
  });
}

TEST_P(RateChunkTest, BoundsWhatItDecodesTo) {
  for_each_input([](std::span<const float> values, float step) {
    float largest = 0;
    const Bytes code = encode(values, step);
    for (const float value : decode(code, values.size(), step)) largest = std::max(largest, std::fabs(value));
    const float bound = decoder().unpack(code, values.size()).bound(step);
    EXPECT_GE(bound, largest);
    EXPECT_EQ(bound == 0, largest == 0);
  });
}

TEST_P(RateChunkTest, AddsWithAWeight) {
  for_each_input([](std::span<const float> values, float step) {
    const Bytes code = encode(values, step);
    std::vector<float> sum(values.size());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<float>(i % 5) - 2;
    std::vector<float> expected = sum;
    const std::vector<float> decoded = decode(code, values.size(), step);
    for (std::size_t i = 0; i < sum.size(); ++i) expected[i] += 0.3F * decoded[i];
    decoder().unpack(code, values.size()).add(step, 0.3F, sum);
    expect_same_bits(sum, expected);
    for (std::size_t i = 0; i < sum.size(); ++i) expected[i] = 0.3F * decoded[i];
    for (const std::size_t first : {0, 1, 12, 15}) {  // that begins with a line, and not
      AlignedFloats past_caches(first + values.size() + 16, 99.0F);
      const auto out = std::span(past_caches).subspan(first, values.size());
      decoder().unpack(code, values.size()).store_past_caches(step, 0.3F, out);
      expect_same_bits(out, expected);
      std::ranges::fill(out, 99.0F);
      EXPECT_TRUE(std::ranges::all_of(past_caches, [](float v) { return v == 99.0F; }));
    }
    expect_same_bits(decode(code, values.size(), step, 0.3F), expected);
  });
}

TEST_P(RateChunkTest, CopiesOutliveTheirDecoder) {
  for_each_input([](std::span<const float> values, float step) {
    constexpr std::size_t kGuards = 64;
    const Bytes code = encode(values, step);
    const std::vector<float> expected = decode(code, values.size(), step);
    const std::size_t most = most_copy_bytes(values.size(), code.size());
    const auto memory = std::make_unique<std::uint64_t[]>((most + kGuards) / 8 + 1);
    const auto bytes = std::as_writable_bytes(std::span(memory.get(), (most + kGuards) / 8 + 1));
    std::ranges::fill(bytes, std::byte{0xA5});
    const auto copier = std::make_unique<ChunkDecoder>();
    const UnpackedChunk unpacked = copier->unpack(code, values.size()), copy = unpacked.copy_to(bytes.first(most));
    EXPECT_TRUE(std::ranges::all_of(bytes.subspan(most), [](std::byte b) { return b == std::byte{0xA5}; }));
    EXPECT_EQ(copy.bound(step), unpacked.bound(step));
    copier->unpack(encode(mixture(kMostChunkElements, 1, 9), 0.5F), kMostChunkElements);
    std::vector<float> stored(values.size(), 99.0F), added(values.size(), 0.0F);
    copy.store(step, 1, stored);
    copy.add(step, 1, added);
    expect_same_bits(stored, expected);
    for (std::size_t i = 0; i < added.size(); ++i) ASSERT_EQ(added[i], expected[i]);
  });
}

TEST_P(RateChunkTest, WritesTheSameBytesAsTheBestTarget) {
  for_each_input([](std::span<const float> values, float step) {
    const Bytes here = encode(values, step);
    kernels::force_target("");
    const Bytes best = encode(values, step);
    kernels::force_target(GetParam());
    ASSERT_EQ(here, best);
  });
}

TEST_P(RateChunkTest, SaysWhatIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const std::size_t at : {0, 127, 128, 4000}) {
      std::vector<float> values = mixture(4001, 1), residual(values.size());
      values[at] = bad;
      Bytes code(most_code_bytes(values.size()));
      EXPECT_FALSE(encoder().encode(values, 1, code, residual).finite);
    }
}

// An outlier costs some bits, and its neighbours are coded as before.
TEST(RateChunk, OutliersHarmNobody) {
  const std::vector<float> values = mixture(32768, 0.5);
  const std::size_t without = encode(values, 2).size();
  for (const float outlier : {1e3F, 1e6F, 1e9F, std::numeric_limits<float>::max()}) {
    std::vector<float> with = values;
    for (std::size_t i = 100; i < with.size(); i += 4000) with[i] = outlier;
    EXPECT_LE(encode(with, 2).size(), without + 9 * 20) << outlier;
    const std::vector<float> decoded = decode(encode(with, 2), with.size(), 2), before = decode(encode(values, 2), with.size(), 2);
    for (std::size_t i = 0; i < with.size(); ++i)
      if (with[i] == values[i]) { ASSERT_LE(std::fabs(decoded[i] - before[i]), 0.7) << i; }
  }
}

// Against an ideal coder that knows each block's class, the mean of its levels in half octaves, and each class's distribution.
TEST(RateChunk, ComesNearAnIdealCoder) {
  for (const double spread : {0.0, 0.7, 1.5, 3.0})
    for (const float step : {16.0F, 8.0F, 4.0F, 2.0F, 1.0F, 0.5F, 0.25F, 0.1F}) {
      const std::vector<float> values = mixture(32768 * 8, spread, 3);
      double bits = 0;
      for (std::size_t chunk = 0; chunk < 8; ++chunk)
        bits += 8.0 * static_cast<double>(encode(std::span(values).subspan(chunk * 32768, 32768), step).size());
      const double ideal = reference::ideal_bits(values, step), entries = static_cast<double>(values.size());
      if (ideal / entries < 0.02) continue;
      const double most = ideal / entries < 0.1 ? 1.1 : ideal / entries < 1 ? 1.08 : 1.04;  // a chunk's fixed cost shows
      EXPECT_LE(bits / ideal, most) << "spread " << spread << ", step " << step << ": " << bits / entries << " bits";
      EXPECT_GE(bits / ideal, 0.8);
    }
}

TEST(RateChunk, EstimatesItsBits) {
  for (const double spread : {0.0, 1.5})
    for (const float step : {8.0F, 2.0F, 0.5F, 0.02F}) {
      const std::vector<float> values = mixture(32768, spread);
      const double taken = 8.0 * static_cast<double>(encode(values, step).size()), estimated = encoder().estimate_bits(values, step);
      EXPECT_NEAR(estimated / taken, 1, 0.01 + 200 / taken) << "spread " << spread << ", step " << step;
    }
  const std::vector<float> zeros(kMostChunkElements);
  EXPECT_NEAR(encoder().estimate_bits(zeros, 1), 28.5, 1e-6) << "a head and a state";
  EXPECT_NEAR(encoder().estimate_bits(std::span(zeros).first(zeros.size() / 8), 1), 28.5 / 8, 1e-6) << "of a chunk of which it is a part";
}

TEST(RateChunk, RefusesWhatIsCutOrAppended) {
  const std::vector<float> values = mixture(5000, 2);
  for (const float step : {0.01F, 1.0F, 1e9F}) {
    const Bytes code = encode(values, step);
    for (std::size_t size = 0; size < code.size(); size += 1 + size / 50)
      EXPECT_THROW(decode(Bytes(code.begin(), code.begin() + static_cast<std::ptrdiff_t>(size)), values.size(), step), PayloadError) << size;
    Bytes longer = code;
    longer.push_back(std::byte{0});
    EXPECT_THROW(decode(longer, values.size(), step), PayloadError);
  }
  EXPECT_THROW(decode({}, 0, 1), PayloadError);
  EXPECT_THROW(decode({std::byte{5}}, 0, 1), PayloadError);
}

}  // namespace
}  // namespace thinwire::casq
