#include "kernels/hadamard.h"

#include <bit>
#include <cmath>

#include "kernels/codes.h"
#include "kernels/every_target.h"
#include "kernels/inputs.h"

namespace thinwire::kernels {
namespace {

class HadamardTest : public EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, HadamardTest, all_targets(), target_name);

// By its definition, in double precision.
std::vector<double> transformed(const std::vector<float>& values) {
  std::vector<double> result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    for (std::size_t j = 0; j < values.size(); ++j)
      result[i] += (std::popcount(i & j) % 2 == 0 ? 1 : -1) * static_cast<double>(values[j]);
  return result;
}

TEST_P(HadamardTest, IsTheSumWithItsSigns) {
  for (std::size_t n = kLeastHadamard; n <= 512; n *= 2) {
    Buffer<float> values(normal_values(n), 1);
    const std::vector<double> expected = transformed(values.elements());
    hadamard(values.span());
    for (std::size_t i = 0; i < n; ++i)
      ASSERT_NEAR(static_cast<double>(values.elements()[i]), expected[i], 1e-6 * static_cast<double>(n)) << i << " of " << n;
    EXPECT_TRUE(values.untouched_before());
  }
}

TEST_P(HadamardTest, TwiceIsEverythingTimesItsLength) {
  for (std::size_t n = kLeastHadamard; n <= 32768; n *= 2) {
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 7);  // sums are exact
    std::vector<float> twice = values;
    hadamard(twice);
    hadamard(twice);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(twice[i], static_cast<float>(n) * values[i]) << i << " of " << n;
  }
}

TEST_P(HadamardTest, HasTheSameBitsAsTheFallback) {
  for (std::size_t n = kLeastHadamard; n <= 32768; n *= 2) {
    std::vector<float> values = normal_values(n), expected = values;
    hadamard(values);
    force_target(available_targets().back());
    hadamard(expected);
    force_target(GetParam());
    ASSERT_EQ(values, expected) << n;
  }
}

TEST_P(HadamardTest, SignsChangeWhereABitIsSet) {
  for (const std::size_t n : kSizes) {
    Buffer<float> values(normal_values(n), 1);
    std::vector<float> expected = values.elements();
    std::vector<std::uint8_t> codes(n);
    for (std::size_t i = 0; i < n; ++i) codes[i] = i * i % 3 == 1;
    for (std::size_t i = 0; i < n; ++i) expected[i] = codes[i] != 0 ? -expected[i] : expected[i];
    std::vector<std::byte> packed(packed_bytes(n, 1));
    pack(codes, 1, packed);
    negate_where(packed, values.span());
    EXPECT_EQ(values.elements(), expected);
    EXPECT_TRUE(values.untouched_before());
  }
}

}  // namespace
}  // namespace thinwire::kernels
