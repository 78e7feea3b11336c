// In which order a stage has gradiveq's coefficients.
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "compressors/gradiveq/principal_components.h"

namespace thinwire {
namespace {

constexpr int kOut = 64, kIn = 32, kKernel = 9;
const Parameter kParameter{"conv", {kOut, kIn, 3, 3}};

// Components along input channels whose deviations fall as 1 / (1 + i / falling), and output channels whose logarithms of magnitudes have that spread.
std::vector<float> gradient(double falling, double spread) {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  std::vector<float> values(kOut * kIn * kKernel);
  for (int o = 0; o < kOut; ++o) {
    const double scale = std::exp(spread * normal(random));
    for (int i = 0; i < kIn; ++i)
      for (int x = 0; x < kKernel; ++x)
        values[static_cast<std::size_t>((o * kIn + i) * kKernel + x)] = static_cast<float>(scale / (1 + i / falling) * normal(random));
  }
  return values;
}

bool by_channel(double falling, double spread, bool is_ordered = true) {
  Moments moments(kParameter, Axis::kIn, 576);
  moments.add(gradient(falling, spread));
  const auto found = moments.find({.ratio = 1, .uses = 400, .sent = 0.5, .is_ordered = is_ordered}, false);
  return found && found->basis.dims == kIn && found->basis.by_channel;
}

TEST(ComponentOrder, KeepsTogetherWhatIsAlike) {
  EXPECT_TRUE(by_channel(10, 1));    // channels differ by more than neighbouring components do
  EXPECT_FALSE(by_channel(0.5, 0));  // the other way round
  EXPECT_FALSE(by_channel(10, 1, false));
}

TEST(ComponentOrder, IsSavedWithWhatItFollowsFrom) {
  Moments moments(kParameter, Axis::kIn, 576), other(kParameter, Axis::kIn, 576);
  moments.add(gradient(10, 1));
  std::vector<std::byte> saved(moments.saved_bytes());
  ByteWriter writer(saved);
  moments.save(writer);
  ByteReader reader(saved, "moments");
  other.load(reader);
  reader.expect_end();
  EXPECT_TRUE(other.find({.ratio = 1, .uses = 400, .sent = 0.5, .is_ordered = true}, false)->basis.by_channel);
}

}  // namespace
}  // namespace thinwire
