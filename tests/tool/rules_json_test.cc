#include "tool/rules_json.h"

#include "expect_refused.h"
#include "temporary_folder.h"

namespace thinwire::tool {
namespace {

constexpr const char* kRules = R"( {"z.*": "none", "a.*": "casq:bits=1"} )";

void expect_rules(const std::vector<Rule>& rules) {
  ASSERT_EQ(rules.size(), 2u);
  EXPECT_EQ(rules[0].pattern, "z.*");  // in the order given, for the first that matches decides
  EXPECT_EQ(rules[0].spec, "none");
  EXPECT_EQ(rules[1].pattern, "a.*");
  EXPECT_EQ(rules[1].spec, "casq:bits=1");
}

TEST(RulesJson, FromTheCommandLineOrAFile) {
  const TemporaryFolder folder;
  const std::string path = folder.write("rules.json", kRules).string();
  expect_rules(parse_rules(kRules));
  expect_rules(parse_rules(path));
  expect_rules(parse_rules("@" + path));
  EXPECT_TRUE(parse_rules("{}").empty());
}

TEST(RulesJson, WhatIsRefused) {
  const TemporaryFolder folder;
  expect_refused([] { parse_rules(""); }, {"--rules", "is empty"});
  expect_refused([] { parse_rules("{"); }, {"--rules", "is not a JSON object", "like {"});
  expect_refused([] { parse_rules(R"({"a": 3})"); }, {"the spec of 'a' is not a string"});
  expect_refused([] { parse_rules(R"({"a": "none", "b": "bf16", "a": "bf16"})"); }, {"--rules", "'a' occurs twice"});
  expect_refused([&] { parse_rules(folder.write("r.json", "[1]").string()); }, {"r.json", "is not a JSON object"});
  const std::string missing = folder.path("none.json").string();
  expect_refused([&] { parse_rules(missing); }, {"none.json", "No such file"});
  EXPECT_THROW(parse_rules("{"), ArgumentError);
}

}  // namespace
}  // namespace thinwire::tool
