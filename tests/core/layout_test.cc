#include "thinwire/layout.h"

#include <gtest/gtest.h>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

TEST(Layout, OffsetsFollowElements) {
  const Layout layout({{"a", {2, 3}}, {"scalar", {}}, {"empty", {4, 0}}, {"b", {5}}});
  EXPECT_EQ(layout.elements(), 12u);
  EXPECT_EQ(layout.offset(1), 6u);
  EXPECT_EQ(layout.offset(2), 7u);
  EXPECT_EQ(layout.offset(3), 7u);
}

TEST(Layout, RefusesWhatCannotBe) {
  EXPECT_THROW(Layout({{"a", {1}}, {"a", {2}}}), ArgumentError);
  EXPECT_THROW(Layout({{"a", {2, -1}}}), ArgumentError);
  EXPECT_THROW(Layout({{"a", {std::int64_t{1} << 40, std::int64_t{1} << 40}}}), ArgumentError);
}

TEST(Layout, FingerprintSeesNamesShapesAndOrder) {
  const auto print = [](std::vector<Parameter> parameters) { return Layout(std::move(parameters)).fingerprint(); };
  const std::uint64_t base = print({{"a", {2, 3}}, {"b", {4}}});
  EXPECT_EQ(base, print({{"a", {2, 3}}, {"b", {4}}}));
  EXPECT_NE(base, print({{"a", {3, 2}}, {"b", {4}}}));
  EXPECT_NE(base, print({{"a", {6}}, {"b", {4}}}));
  EXPECT_NE(base, print({{"b", {4}}, {"a", {2, 3}}}));
  EXPECT_NE(base, print({{"a", {2, 3}}, {"c", {4}}}));
  EXPECT_NE(base, print({{"a", {2, 3}}}));
}

}  // namespace
}  // namespace thinwire
