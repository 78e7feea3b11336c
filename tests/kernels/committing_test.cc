#include "kernels/committing.h"

#include "kernels/every_target.h"
#include "kernels/inputs.h"
#include "kernels/plain_half.h"
#include "kernels/plain_sums.h"

namespace thinwire::kernels {
namespace {

class CommittingTest : public EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, CommittingTest, all_targets(), target_name);

constexpr float kFactors[] = {1.0F, 0.37F, -1024.0F};

std::vector<float> plain_product(std::span<const float> mean, float factor) {
  std::vector<float> product(mean.begin(), mean.end());
  for (float& x : product) x = factor * x;
  return product;
}

TEST_P(CommittingTest, FloatsAreMultipliedAndTheResidualIsWhatIsLeft) {
  for (const float factor : kFactors) {
    for_each_input(finite_contents, [factor](const Buffer<float>& mean) {
      const std::size_t n = mean.span().size();
      const std::vector<float> left = normal_values(n, 7);
      Buffer<float> stored(n, 2), residual(n, 3);
      commit(mean.span(), factor, left, stored.span(), residual.span());
      expect_same_bits(stored.span(), plain_product(mean.span(), factor));
      expect_same_bits(residual.span(), left);
      EXPECT_TRUE(stored.untouched_before());
      EXPECT_TRUE(residual.untouched_before());
    });
  }
}

TEST_P(CommittingTest, PastTheCachesIsTheSame) {
  for (const float factor : kFactors) {
    for_each_input(finite_contents, [factor](const Buffer<float>& mean) {
      const std::size_t n = mean.span().size();
      const std::vector<float> left = normal_values(n, 7);
      Buffer<float> stored(n, 2), residual(n, 3), in_place(left, 1), without_residual(n, 1);
      commit_past_caches(mean.span(), factor, left, stored.span(), residual.span());
      expect_same_bits(stored.span(), plain_product(mean.span(), factor));
      expect_same_bits(residual.span(), left);
      commit_past_caches(mean.span(), factor, in_place.span(), stored.span(), in_place.span());
      expect_same_bits(in_place.span(), left);
      commit_past_caches(mean.span(), factor, {}, without_residual.span(), {});
      expect_same_bits(without_residual.span(), stored.span());
      for (const Buffer<float>* written : {&stored, &residual, &without_residual}) EXPECT_TRUE(written->untouched_before());
    });
  }
}

TEST_P(CommittingTest, FloatsStayWhereTheyAre) {
  for (const std::size_t n : kSizes) {
    const std::vector<float> mean = normal_values(n), left = normal_values(n, 7);
    Buffer<float> in_place(mean, 1), residual(left, 1), without_residual(mean, 1);
    commit(in_place.span(), 0.37F, residual.span(), in_place.span(), residual.span());
    commit(without_residual.span(), 0.37F, {}, without_residual.span(), {});
    expect_same_bits(in_place.span(), plain_product(mean, 0.37F));
    expect_same_bits(without_residual.span(), plain_product(mean, 0.37F));
    expect_same_bits(residual.span(), left);
  }
}

struct Format : HalfFormat {
  void (*commit)(std::span<const float> mean, float factor, std::span<const float> left, std::span<std::uint16_t> stored,
                 std::span<float> residual);
};
const Format kFormats[] = {{kBf16, commit_bf16}, {kFp16, commit_fp16}};

// Calls check(format, mean, factor) with means that may be too large for the format.
template <class Check>
void for_each_mean(const Check& check) {
  for (const Format& format : kFormats) {
    for (const float factor : kFactors) {
      for_each_input(finite_contents, [&](const Buffer<float>& mean) { check(format, mean, factor); });
    }
  }
}

TEST_P(CommittingTest, HalvesAreRoundedAndTheResidualTakesWhatRoundingLost) {
  for_each_mean([](const Format& format, const Buffer<float>& mean, float factor) {
    const std::size_t n = mean.span().size();
    const std::vector<float> left = normal_values(n, 7, 1e-3F);
    Buffer<std::uint16_t> stored(n, 2);
    Buffer<float> residual(n, 3);
    format.commit(mean.span(), factor, left, stored.span(), residual.span());
    for (std::size_t i = 0; i < n; ++i) {
      const float exact = mean.span()[i];
      expect_half(format, stored.span()[i], factor * exact);
      const float again = static_cast<float>(format.decode(stored.span()[i])) / factor;
      const float lost = exact - again;
      expect_float(residual.span()[i], left[i] + lost);
    }
    EXPECT_TRUE(stored.untouched_before());
    EXPECT_TRUE(residual.untouched_before());
  });
}

TEST_P(CommittingTest, HalvesInPlaceAndWithoutAResidualAreTheSame) {
  for_each_mean([](const Format& format, const Buffer<float>& mean, float factor) {
    const std::size_t n = mean.span().size();
    const std::vector<float> left = normal_values(n, 7, 1e-3F);
    Buffer<std::uint16_t> stored(n), in_place(n, 1), without_residual(n, 1);
    Buffer<float> residual(n), over_left(left, 1);
    format.commit(mean.span(), factor, left, stored.span(), residual.span());
    format.commit(mean.span(), factor, over_left.span(), in_place.span(), over_left.span());
    format.commit(mean.span(), factor, {}, without_residual.span(), {});
    EXPECT_EQ(in_place.elements(), stored.elements());
    EXPECT_EQ(without_residual.elements(), stored.elements());
    expect_same_bits(over_left.span(), residual.span());
  });
}

}  // namespace
}  // namespace thinwire::kernels
