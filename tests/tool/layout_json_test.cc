#include "tool/layout_json.h"

#include <random>

#include "expect_refused.h"
#include "temporary_folder.h"

namespace thinwire::tool {
namespace {

Layout parse(const std::string& text, std::uint64_t elements) { return parse_layout(text, elements, "l.json"); }

void expect_layout_refused(const std::string& text, std::uint64_t elements, std::initializer_list<std::string> parts) {
  expect_refused([&] { parse(text, elements); }, parts);
  expect_refused([&] { parse(text, elements); }, {"l.json: "});
}

TEST(LayoutJson, ParametersAreSortedByOffset) {
  const Layout layout = parse(R"([{"name": "b", "shape": [3], "offset": 8, "dtype": "float32"},
                                  {"name": "a", "shape": [2, 4], "offset": 0},
                                  {"name": "scalar", "shape": [], "offset": 11}])", 12);
  ASSERT_EQ(layout.parameters().size(), 3u);
  EXPECT_EQ(layout.parameters()[0].name, "a");
  EXPECT_EQ(layout.parameters()[0].shape, (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(layout.parameters()[1].name, "b");
  EXPECT_EQ(layout.parameters()[2].name, "scalar");
  EXPECT_EQ(layout.offset(2), 11u);
  EXPECT_EQ(layout.elements(), 12u);
}

TEST(LayoutJson, EmptyParametersTakeNoPlace) {
  const Layout layout = parse(R"([{"name": "full", "shape": [4], "offset": 0},
                                  {"name": "last", "shape": [0, 7], "offset": 4},
                                  {"name": "first", "shape": [0], "offset": 0}])", 4);
  EXPECT_EQ(layout.parameters()[0].name, "first");
  EXPECT_EQ(layout.parameters()[2].name, "last");
}

TEST(LayoutJson, ParametersMustTileTheGradient) {
  const std::string a = R"({"name": "a", "shape": [4], "offset": 0})";
  expect_layout_refused("[" + a + R"(, {"name": "b", "shape": [4], "offset": 3}])", 7,
                        {"'b' begins at 3", "ends at 4", "overlap"});
  expect_layout_refused("[" + a + R"(, {"name": "b", "shape": [4], "offset": 5}])", 9,
                        {"'b' begins at 5", "ends at 4", "every element"});
  expect_layout_refused("[" + a + "]", 5, {"describes 4 elements", "has 5"});
  expect_layout_refused("[" + a + "]", 3, {"describes 4 elements", "has 3"});
  expect_layout_refused("[]", 3, {"describes 0 elements"});
  expect_layout_refused("[" + a + R"(, {"name": "a", "shape": [4], "offset": 4}])", 8, {"a"});  // a name twice
}

TEST(LayoutJson, OtherDocuments) {
  expect_layout_refused("", 1, {"is not JSON", "a layout is a JSON list"});
  expect_layout_refused("[{", 1, {"is not JSON"});
  expect_layout_refused(R"({"name": "a"})", 1, {"is not a list"});
  expect_layout_refused("[3]", 1, {"entry 0 is not an object"});
  expect_layout_refused(R"([{"shape": [1], "offset": 0}])", 1, {"entry 0 has no \"name\""});
  expect_layout_refused(R"([{"name": "a", "offset": 0}])", 1, {"no \"shape\""});
  expect_layout_refused(R"([{"name": "a", "shape": [1]}])", 1, {"no \"offset\""});
  expect_layout_refused(R"([{"name": 7, "shape": [1], "offset": 0}])", 1, {"\"name\" must be a string"});
  expect_layout_refused(R"([{"name": "a", "shape": 1, "offset": 0}])", 1, {"\"shape\" must be a list"});
  expect_layout_refused(R"([{"name": "a", "shape": [-1], "offset": 0}])", 1, {"\"shape\""});
  expect_layout_refused(R"([{"name": "a", "shape": [1.5], "offset": 0}])", 1, {"\"shape\""});
  expect_layout_refused(R"([{"name": "a", "shape": ["1"], "offset": 0}])", 1, {"\"shape\""});
  expect_layout_refused(R"([{"name": "a", "shape": [1], "offset": -1}])", 1, {"\"offset\""});
  expect_layout_refused(R"([{"name": "a", "shape": [1], "offset": null}])", 1, {"\"offset\""});
  expect_layout_refused(std::string(100000, '['), 1, {"is not JSON"});
}

TEST(LayoutJson, SizesThatOverflow) {
  expect_layout_refused(R"([{"name": "a", "shape": [9223372036854775807, 3], "offset": 0}])", 1, {"64 bits"});
  expect_layout_refused(R"([{"name": "a", "shape": [18446744073709551615], "offset": 0}])", 1, {"\"shape\""});
  expect_layout_refused(R"([{"name": "a", "shape": [9223372036854775807, 2], "offset": 9223372036854775807}])", 1,
                        {"64 bits"});
  expect_layout_refused(R"([{"name": "a", "shape": [1e400], "offset": 0}])", 1, {"JSON"});
}

TEST(LayoutJson, Files) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_layout(folder.write("l.json", R"([{"name": "a", "shape": [4], "offset": 0}])"), 4).elements(), 4u);
  expect_refused([&] { read_layout(folder.path("none.json"), 4); }, {"none.json", "No such file"});
  expect_refused([&] { read_layout(folder.path(""), 4); }, {"is not a file"});
}

TEST(LayoutJson, DamagedDocumentsAreRefusedOrFit) {
  std::mt19937 random(5);
  const std::string whole = R"([{"name": "a", "shape": [2, 4], "offset": 0}, {"name": "b", "shape": [3], "offset": 8}])";
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = whole;
    for (auto changes = 1 + random() % 3; changes > 0; --changes) {
      const std::size_t at = random() % damaged.size();
      if (random() % 3 == 0) damaged.insert(at, whole.substr(random() % whole.size(), random() % 24));
      else damaged[at] = static_cast<char>(random() % 2 == 0 ? random() : "[]{}\",:0123456789-.e"[random() % 20]);
    }
    try {
      ASSERT_EQ(parse(damaged, 11).elements(), 11u);
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace thinwire::tool
