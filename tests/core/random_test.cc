#include "core/random.h"

#include <gtest/gtest.h>

namespace thinwire {
namespace {

// Known answers of the authors' Random123 library.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox::generate({0, 0, 0, 0}, {0, 0}), (Philox::Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t f = 0xffffffff;
  EXPECT_EQ(Philox::generate({f, f, f, f}, {f, f}), (Philox::Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox::generate({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Philox::Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, SeedStepAndIndexMatterInAllTheirBits) {
  const Philox::Block base = Philox(1, 2).block(3);
  EXPECT_EQ(base, Philox(1, 2).block(3));
  constexpr std::uint64_t high = std::uint64_t{1} << 40;
  EXPECT_NE(base, Philox(1 + high, 2).block(3));
  EXPECT_NE(base, Philox(1, 2 + high).block(3));
  EXPECT_NE(base, Philox(1, 2).block(3 + high));
}

}  // namespace
}  // namespace thinwire
