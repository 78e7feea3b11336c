#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Layout& layout() {
  static const Layout instance({{"embed.weight", {100, 64}}, {"fc.weight", {64, 64}}, {"fc.bias", {64}}, {"tiny.weight", {10, 10}},
                                {"long.vector", {5000}}});
  return instance;
}

std::vector<std::string> names_of(ReducerOptions options) {
  const Reducer reducer(layout(), options);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < layout().parameters().size(); ++i)
    names.push_back(reducer.compressor_of(i).substr(0, reducer.compressor_of(i).find(':')));
  return names;
}

TEST(Policy, WithoutRulesEverythingIsCompressed) {
  EXPECT_THAT(names_of({.compressor = "casq"}), ::testing::Each("casq"));
}

TEST(Policy, SmallParametersMayTravelUncompressed) {
  EXPECT_THAT(names_of({.compressor = "casq", .small_uncompressed = true}),
              ::testing::ElementsAre("casq", "casq", "none", "none", "none"));
}

TEST(Policy, TheFirstRuleThatMatchesDecides) {
  EXPECT_THAT(names_of({.compressor = "casq", .rules = {{"*.bias", "fp16"}, {"fc.*", "bf16"}, {"e?bed.*", "none"}}, .small_uncompressed = true}),
              ::testing::ElementsAre("none", "bf16", "fp16", "none", "none"));
}

void expect_refused(const ReducerOptions& options, const std::vector<std::string>& words) {
  try {
    const Reducer reducer(layout(), options);
    FAIL() << "accepted";
  } catch (const ArgumentError& error) {
    for (const std::string& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
  }
}

TEST(Options, AreRefusedWithNameValueAndWhatIsAllowed) {
  expect_refused({.compressor = "casq:bits=9"}, {"casq", "bits=9", "1 to 8"});
  expect_refused({.compressor = "casq:bit=2"}, {"casq", "'bit'", "bits, retrain"});
  expect_refused({.compressor = "casq:bits=2.5"}, {"bits=2.5"});
  expect_refused({.compressor = "casq:feedback=yes"}, {"feedback=yes", "off or on"});
  expect_refused({.compressor = "cask"}, {"'cask'", "casq"});
  expect_refused({.compressor = "casq/none"}, {"stage", "'none'"});
  expect_refused({.rules = {{"nothing.matches", "topp"}}}, {"'topp'"});
  expect_refused({.rank = 2, .world_size = 2}, {"rank is 2", "0 to 1"});
  expect_refused({.world_size = 0}, {"world_size is 0"});
  expect_refused({.lanes = 0}, {"lanes is 0"});
}

TEST(Gradients, AreRefusedBeforeAnythingStarts) {
  Reducer reducer(layout(), {.compressor = "casq"});
  std::vector<float> values(layout().elements());
  auto parameters = parameters_of(layout(), values);
  EXPECT_THROW(reducer.reduce(parameters, 1), ArgumentError);
  EXPECT_THROW(reducer.reduce(parameters, 0, 0.0), ArgumentError);
  EXPECT_THROW(reducer.reduce(parameters, 0, std::numeric_limits<double>::quiet_NaN()), ArgumentError);
  parameters[1].data = parameters[1].data.first(12);
  EXPECT_THROW(reducer.reduce(parameters), ArgumentError);
  parameters = parameters_of(layout(), values);
  parameters.push_back(parameters[0]);
  EXPECT_THROW(reducer.reduce(parameters), ArgumentError);
  parameters.back().parameter = 99;
  EXPECT_THROW(reducer.reduce(parameters), ArgumentError);
  parameters.pop_back();
  parameters[0].type = ElementType::kInt32;
  EXPECT_THROW(reducer.reduce(parameters), ArgumentError);
}

TEST(Policy, APatternThatOccursTwiceIsRefused) {
  EXPECT_THROW(Reducer(layout(), {.rules = {{"*.bias", "none"}, {"fc.*", "bf16"}, {"*.bias", "bf16"}}}), ArgumentError);
}

TEST(Fingerprint, SeesWhateverWorkersMustAgreeOn) {
  const auto print = [](ReducerOptions options) { return Reducer(layout(), std::move(options)).fingerprint(); };
  const std::uint64_t base = print({.world_size = 2});
  EXPECT_EQ(base, print({.rank = 1, .world_size = 2}));
  EXPECT_EQ(base, print({.compressor = "casq", .world_size = 2}));  // the default, written otherwise
  EXPECT_NE(base, print({.compressor = "casq:bits=3", .world_size = 2}));
  EXPECT_NE(base, print({.rules = {{"x", "none"}}, .world_size = 2}));
  EXPECT_NE(base, print({.small_uncompressed = true, .world_size = 2}));
  EXPECT_NE(base, print({.seed = 1, .world_size = 2}));
  EXPECT_NE(base, print({.world_size = 3}));
  EXPECT_NE(base, print({.world_size = 2, .lanes = 2}));
  EXPECT_NE(base, Reducer(Layout({{"other", {1}}}), {.world_size = 2}).fingerprint());
}

}  // namespace
}  // namespace thinwire::testing
