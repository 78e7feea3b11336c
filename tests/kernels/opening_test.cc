#include "kernels/opening.h"

#include "kernels/every_target.h"
#include "kernels/inputs.h"
#include "kernels/plain_half.h"
#include "kernels/plain_sums.h"

namespace thinwire::kernels {
namespace {

class OpeningTest : public EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, OpeningTest, all_targets(), target_name);

template <class Contents, class Check>
void for_each_gradient(const Contents& contents, const Check& check) {
  for (const float scale : {1.0F, 0.37F}) {
    for_each_input(contents, [&](const Buffer<float>& gradient) { check(gradient, scale); });
  }
}

// What open() should write.
std::vector<float> plain_sum(std::span<const float> gradient, float scale, std::span<const float> residual) {
  std::vector<float> sum(gradient.size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const float scaled = scale * gradient[i];
    sum[i] = residual.empty() ? scaled : scaled + residual[i];
  }
  return sum;
}

// Opens `gradient`, whose values are `decoded`, with and without a residual.
template <class Element, class Open>
void expect_opened(const Open& open_it, const Buffer<Element>& gradient, std::span<const float> decoded, float scale) {
  const std::size_t n = decoded.size();
  const std::vector<Element> before = gradient.elements();
  for (const auto& residual : {Buffer<float>(normal_values(n, 7), 3), Buffer<float>(0)}) {
    const std::vector<float> expected = plain_sum(decoded, scale, residual.span());
    Buffer<float> values(n, 2);
    const Opened actual = open_it(gradient.span(), scale, residual.span(), values.span());
    expect_same_bits(values.span(), expected);
    expect_magnitudes_of(actual.sum, expected);
    EXPECT_EQ(actual.gradient_nonzero, largest_of(decoded) > 0);
    EXPECT_EQ(gradient.elements(), before);
    EXPECT_TRUE(values.untouched_before());
  }
}

TEST_P(OpeningTest, AddsTheScaledGradientToTheResidualAndChangesNeither) {
  for_each_gradient(finite_contents, [](const Buffer<float>& gradient, float scale) {
    expect_opened(open, gradient, gradient.span(), scale);
  });
}

template <class Open>
void expect_opened_halves(const Open& open_it, const HalfFormat& format) {
  for_each_gradient(finite_contents, [&](const Buffer<float>& input, float scale) {
    std::vector<float> values = input.elements();
    for (float& x : values) x = std::fabs(x) > 1e4F ? 1e4F : x;  // what fp16 holds
    const Buffer<std::uint16_t> half(encoded(format, values), 1);
    std::vector<float> decoded;
    for (const std::uint16_t bits : half.span()) decoded.push_back(static_cast<float>(format.decode(bits)));
    expect_opened(open_it, half, decoded, scale);
  });
}
TEST_P(OpeningTest, ConvertsHalves) {
  expect_opened_halves(open_bf16, kBf16);
  expect_opened_halves(open_fp16, kFp16);
}

TEST_P(OpeningTest, SeesWhatIsNotFinite) {
  for_each_input(non_finite_contents, [](const Buffer<float>& gradient) {
    const std::size_t n = gradient.span().size();
    const Buffer<std::uint16_t> bf16(encoded(kBf16, gradient.span())), fp16(encoded(kFp16, gradient.span()));
    const bool finite = all_finite(gradient.span());
    std::vector<float> values(n);
    for (const auto& residual : {normal_values(n, 7), std::vector<float>()}) {
      EXPECT_EQ(open(gradient.span(), 1.0F, residual, values).sum.finite, finite);
      EXPECT_EQ(open_bf16(bf16.span(), 1.0F, residual, values).sum.finite, finite);
      EXPECT_EQ(open_fp16(fp16.span(), 1.0F, residual, values).sum.finite, finite);
    }
  });
}

TEST_P(OpeningTest, ReportsAGradientThatIsAllZeroWhateverTheResidual) {
  std::vector<float> values(33);
  const std::vector<float> zeros(33, -0.0F), residual = normal_values(33);
  const std::vector<std::uint16_t> half_zeros(33, 0x8000);
  EXPECT_FALSE(open(zeros, 1.0F, residual, values).gradient_nonzero);
  EXPECT_FALSE(open_bf16(half_zeros, 1.0F, residual, values).gradient_nonzero);
  EXPECT_FALSE(open_fp16(half_zeros, 1.0F, residual, values).gradient_nonzero);
}

TEST_P(OpeningTest, WritesOverWhatItReads) {
  for (const std::size_t n : kSizes) {
    const std::vector<float> gradient = normal_values(n), residual = normal_values(n, 7);
    const std::vector<float> expected = plain_sum(gradient, 0.37F, residual);
    Buffer<float> over_gradient(gradient, 1), over_residual(residual, 1);
    open(over_gradient.span(), 0.37F, residual, over_gradient.span());
    open(gradient, 0.37F, over_residual.span(), over_residual.span());
    expect_same_bits(over_gradient.span(), expected);
    expect_same_bits(over_residual.span(), expected);
  }
}

}  // namespace
}  // namespace thinwire::kernels
