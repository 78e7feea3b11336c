#include "thinwire/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Spec, TextIsWhatWasParsed) {
  for (const char* text : {"none", "casq:bits=2", "casq:bits=2,feedback=off", "gradiveq:ratio=8/qsgd:bits=4",
                           "topk:ratio=0.01", "s2:mode=exact/casq:bits=2,retrain=50", "a:x=1e-3,y=-2"})
    EXPECT_EQ(Spec::parse(text).text(), text);
}

TEST(Spec, StagesAndValuesAreInOrder) {
  const Spec spec = Spec::parse("one:b=2,a=1/two");
  ASSERT_EQ(spec.stages.size(), 2u);
  EXPECT_EQ(spec.stages[0].name, "one");
  EXPECT_EQ(spec.stages[0].values[0], (std::pair<std::string, std::string>("b", "2")));
  EXPECT_EQ(spec.stages[0].values[1], (std::pair<std::string, std::string>("a", "1")));
  EXPECT_TRUE(spec.stages[1].values.empty());
}

class BadSpec : public testing::TestWithParam<const char*> {};

TEST_P(BadSpec, IsRefusedWithWhatWasGivenAndTheForm) {
  try {
    Spec::parse(GetParam());
    FAIL() << "no error for '" << GetParam() << "'";
  } catch (const ArgumentError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'" + std::string(GetParam()) + "'"), HasSubstr("name[:key=value,...]")));
  }
}

INSTANTIATE_TEST_SUITE_P(All, BadSpec,
                         testing::Values("", ":", "casq:", "casq:bits", "casq:bits=", "casq:=2", "casq:bits=2,", "casq:,bits=2",
                                         "casq:bits=2,bits=3", "casq bits=2", "/casq", "casq/", "casq//none", "c\xc3\xa4sq",
                                         "casq:bits=2=3", "casq:bits= 2"));

}  // namespace
}  // namespace thinwire
