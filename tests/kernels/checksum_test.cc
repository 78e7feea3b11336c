#include "kernels/checksum.h"

#include <random>

#include "kernels/every_target.h"
#include "kernels/inputs.h"
#include "kernels/plain_checksum.h"

namespace thinwire::kernels {
namespace {

class ChecksumTest : public EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, ChecksumTest, all_targets(), target_name);

std::vector<std::byte> random_bytes(std::size_t n) {
  std::mt19937 random(static_cast<std::uint32_t>(n));
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST_P(ChecksumTest, IsThatOfWordsInSixteenLanes) {
  for (std::size_t n = 0; n < 300; ++n)
    for (const std::size_t offset : {0, 1, 12}) {
      const Buffer<std::byte> input(random_bytes(n), offset);
      ASSERT_EQ(checksum(input.span()), testing::plain_checksum(input.span())) << n << " bytes from " << offset;
    }
  for (const std::size_t n : kSizes) EXPECT_EQ(checksum(random_bytes(n)), testing::plain_checksum(random_bytes(n))) << n;
}

// By a few lines of Python, written from docs/wire_format.md.
TEST_P(ChecksumTest, HasKnownValues) {
  std::vector<std::byte> counting(1000);
  for (std::size_t i = 0; i < counting.size(); ++i) counting[i] = static_cast<std::byte>(i * 7 % 256);
  EXPECT_EQ(checksum({}), 0xDB0B9531u);
  EXPECT_EQ(checksum(std::vector<std::byte>(64)), 0x3E7C0471u);
  EXPECT_EQ(checksum(counting), 0x1A532E05u);
}

TEST_P(ChecksumTest, ChangesWithEveryBit) {
  for (const std::size_t n : {0, 1, 3, 4, 63, 64, 65, 1000}) {
    std::vector<std::byte> bytes = random_bytes(n);
    const std::uint32_t before = checksum(bytes);
    for (std::size_t bit = 0; bit < 8 * n; ++bit) {
      const std::byte flip = std::byte{1} << (bit % 8);
      bytes[bit / 8] ^= flip;
      ASSERT_NE(checksum(bytes), before) << "bit " << bit << " of " << n << " bytes";
      bytes[bit / 8] ^= flip;
    }
    EXPECT_EQ(checksum(bytes), before);
  }
}

// A sum of words would not notice.
TEST_P(ChecksumTest, ChangesWithTheOrderAndTheNumberOfBytes) {
  const std::vector<std::byte> bytes = random_bytes(256);
  const std::uint32_t before = checksum(bytes);
  for (std::size_t word = 4; word < bytes.size(); word += 4) {
    std::vector<std::byte> swapped = bytes;
    std::swap_ranges(swapped.begin(), swapped.begin() + 4, swapped.begin() + static_cast<std::ptrdiff_t>(word));
    EXPECT_NE(checksum(swapped), before) << word;
  }
  std::vector<std::uint32_t> of_zeros;
  for (std::size_t n = 0; n < 200; ++n) of_zeros.push_back(checksum(std::vector<std::byte>(n)));
  std::ranges::sort(of_zeros);
  EXPECT_EQ(std::ranges::adjacent_find(of_zeros), of_zeros.end());
}

// Some words changed at random: of 2^32 such changes one is missed on average, of these none. A bit that is stuck, and bytes
// that are missing, are changes of many words that are not at random.
TEST_P(ChecksumTest, ChangesWithManyWords) {
  const std::vector<std::byte> bytes = random_bytes(4096);
  const std::uint32_t before = checksum(bytes);
  std::mt19937 random(1);
  for (int trial = 0; trial < 20'000; ++trial) {
    std::vector<std::byte> changed = bytes;
    for (auto changes = 2 + random() % 6; changes > 0; --changes)
      changed[random() % changed.size()] ^= static_cast<std::byte>(1 + random() % 255);
    ASSERT_TRUE(checksum(changed) != before || changed == bytes) << trial;
  }
  for (int bit = 0; bit < 8; ++bit)
    for (const std::size_t stride : {1, 2, 4, 8, 16, 32, 64, 128}) {
      std::vector<std::byte> stuck = bytes;
      for (std::size_t i = 0; i < stuck.size(); i += stride) stuck[i] |= std::byte{1} << bit;
      EXPECT_NE(checksum(stuck), before) << bit << ", " << stride;
    }
  for (std::size_t missing = 1; missing < 200; ++missing) {
    std::vector<std::byte> moved(bytes.begin() + static_cast<std::ptrdiff_t>(missing), bytes.end());
    moved.resize(bytes.size());
    EXPECT_NE(checksum(moved), before) << missing;
  }
}

}  // namespace
}  // namespace thinwire::kernels
