#include "compressors/registry.h"

#include <algorithm>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

using ::testing::HasSubstr;

TEST(Registry, RowsAreInOrderAndWireIdsAreUsedOnce) {
  const auto rows = compressors();
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(rows[0].name, "none");
  EXPECT_TRUE(std::is_sorted(rows.begin() + 1, rows.end(), [](const auto& a, const auto& b) { return a.name < b.name; }));
  std::set<int> ids;
  for (const CompressorInfo& row : rows) {
    EXPECT_TRUE(ids.insert(row.wire_id).second) << row.name;
    EXPECT_NE(row.wire_id, 0) << row.name;
    EXPECT_FALSE(row.reference.empty() || row.bits.empty()) << row.name;
    EXPECT_LE(row.description.find(':'), 34U) << row.name;  // its title fits into the listing
  }
}

// A row's unit is that of its defaults; other values may make another compressor.
TEST(Registry, UnitsAreOfWhatIsMade) {
  EXPECT_EQ(row_of("casq").info.unit, Unit::kElement);
  EXPECT_EQ(row_of("omnireduce").info.unit, Unit::kRow);
  EXPECT_EQ(row_of("gradiveq").info.unit, Unit::kSlice);
  EXPECT_EQ(make_compressor("gradiveq:refresh=every").compressor->unit(), Unit::kParameter);
  EXPECT_EQ(make_compressor("s2:mode=exact/casq").compressor->unit(), Unit::kRow);
}

// How payloads are combined depends on a spec's values; the listing has that of the defaults.
TEST(Registry, RowsTellHowPayloadsOfTheirDefaultsAreCombined) {
  for (const CompressorInfo& row : compressors()) EXPECT_EQ(make_compressor(row.name).claims.aggregation, row.aggregation) << row.name;
}

TEST(Registry, DefaultsAreAllowedAndWrittenOut) {
  for (const CompressorInfo& row : compressors()) {
    const std::string canonical = canonical_spec(row.name);
    EXPECT_EQ(canonical_spec(canonical), canonical);
    for (const SpecParameter& parameter : row.parameters) {
      EXPECT_THAT(canonical, HasSubstr(parameter.name + "=" + parameter.default_value));
      EXPECT_EQ(canonical_spec(row.name + ":" + parameter.name + "=" + parameter.default_value), canonical);
      EXPECT_FALSE(parameter.help.empty() || parameter.allowed().empty());
    }
  }
}

TEST(Registry, EqualSpecsHaveOneCanonicalForm) {
  EXPECT_EQ(canonical_spec("casq:bits=02"), canonical_spec("casq:bits=2"));
  EXPECT_EQ(canonical_spec("casq:feedback=on,bits=2"), canonical_spec("casq:bits=2,feedback=on"));
  EXPECT_EQ(canonical_spec("casq:table=0.10"), canonical_spec("casq:table=1e-1"));
  EXPECT_EQ(canonical_spec("casq:budget=2.0"), canonical_spec("casq:budget=2"));
  EXPECT_EQ(canonical_spec("casq:table=-0"), canonical_spec("casq"));
  EXPECT_NE(canonical_spec("casq:bits=2"), canonical_spec("casq:bits=3"));
}

TEST(Registry, RefusalsNameWhatWasGivenAndWhatIsAllowed) {
  const auto expect_refused = [](const std::string& spec, std::initializer_list<const char*> words) {
    try {
      canonical_spec(spec);
      ADD_FAILURE() << spec << " was accepted";
    } catch (const ArgumentError& error) {
      for (const char* word : words) EXPECT_THAT(error.what(), HasSubstr(word)) << spec;
    }
  };
  expect_refused("caskq", {"caskq", "casq", "none", "bf16"});
  expect_refused("casq:bits=9", {"casq", "bits=9", "from 1 to 8"});
  expect_refused("casq:bits=0", {"bits=0", "from 1 to 8"});
  expect_refused("casq:budget=0.5", {"budget=0.5", "0 or", "from 1 to 8"});
  expect_refused("casq:table=1.5", {"table=1.5", "from 0 to 1"});
  expect_refused("casq:assign=fair", {"assign=fair", "rank or hash"});
  expect_refused("casq:bits=2.0", {"bits=2.0"});
  expect_refused("casq:bits=-1", {"bits=-1"});
  expect_refused("casq:bits=99999999999999999999", {"bits=9999"});
  expect_refused("casq:feedback=maybe", {"feedback=maybe", "off or on"});
  expect_refused("casq:bit=2", {"'bit'", "bits", "retrain", "feedback"});
  expect_refused("none:bits=2", {"none", "'bits'", "no parameters"});
  expect_refused("none/casq", {"none", "casq", "no further stage"});
  expect_refused("gradiveq/casq",
                 {"gradiveq", "casq", "whole parameters",
                  "followed by none, alq, amq, bf16, bmucsc, demo, dorefa, eden, efsign, "
                   "fp16, fp8, int, mucsc, mxfp4, natural, nuqsgd, onebit, qsgd"});
  expect_refused("s2:mode=exact/gradiveq:refresh=every", {"s2", "gradiveq", "whole parameters", "single elements"});
  expect_refused("s2:mode=exact/gradiveq",
                 {"s2", "gradiveq", "whole slices",
                  "followed by none, alq, amq, bf16, bmucsc, casq, demo, dorefa, eden, efsign, "
                   "fp16, fp8, int, mucsc, mxfp4, natural, nuqsgd, onebit, qsgd"});
}

}  // namespace
}  // namespace thinwire
