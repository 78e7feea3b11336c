#include "tool/table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

namespace thinwire::tool {
namespace {

TEST(Table, AlignsAndWraps) {
  Table table({{"name", 8}, {"rate", 6, true}, {"what", 12}});
  table.add({"a", "1.5", "short"});
  table.add({"b", "12", "some words that do not fit"});
  std::ostringstream out;
  table.print(out);
  EXPECT_EQ(out.str(),
            "name  rate  what\n"
            "----  ----  -----------\n"
            "a      1.5  short\n"
            "b       12  some words\n"
            "            that do not\n"
            "            fit\n");
}

TEST(Table, WrapsAtSpacesWhereThereAreAny) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(wrap("", 4), Lines{""});
  EXPECT_EQ(wrap("abcd", 4), Lines{"abcd"});
  EXPECT_EQ(wrap("abcd ef", 4), (Lines{"abcd", "ef"}));
  EXPECT_EQ(wrap("abcdefghij", 4), (Lines{"abcd", "efgh", "ij"}));
  EXPECT_EQ(wrap("\u00e4\u00f6\u00fc\u00e4\u00f6", 4), (Lines{"\u00e4\u00f6\u00fc\u00e4", "\u00f6"}));
  EXPECT_EQ(text_width("k-means \u00e0 la Lloyd"), 18u);
}

TEST(Table, Numbers) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(25600000), "25,600,000");
  EXPECT_EQ(short_number(0.16312), "0.163");
  EXPECT_EQ(short_number(std::nan("")), "-");
  EXPECT_EQ(short_number(INFINITY), "-");
  EXPECT_EQ(short_bytes(0), "0 B");
  EXPECT_EQ(short_bytes(999), "999 B");
  EXPECT_EQ(short_bytes(999.7), "1 kB");
  EXPECT_EQ(short_bytes(6.4144e6), "6.41 MB");
}

}  // namespace
}  // namespace thinwire::tool
