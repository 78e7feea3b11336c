// The compressors there are, as data: the tool's listing, Python's documentation, the benchmark's list and the
// conformance tests are all made from these rows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace thinwire {

// How payloads of several workers are combined.
enum class Aggregation : std::uint8_t {
  kLinear,  // payloads add up: all-reduce
  kGather,  // payloads are decoded one by one, or may be
};

// The smallest part of a parameter that a compressor can encode without seeing the rest.
enum class Unit : std::uint8_t { kElement, kRow, kSlice, kParameter };

// What kind of compressor it is.
enum class Family : std::uint8_t {
  kFloats,       // shorter floats, or none shorter
  kLevels,       // every entry becomes a level
  kSigns,        // every entry becomes its sign
  kRotations,    // every entry of a rotated chunk becomes a level
  kProjections,  // several entries become fewer
  kSparsifiers,  // some entries travel, the others wait
  kRows,         // what is zero does not travel
};

// "linear" or "gather"; "element", "row", "slice" or "parameter"; the names of families are those of the values.
const char* name_of(Aggregation aggregation);
const char* name_of(Unit unit);
const char* name_of(Family family);

struct SpecParameter {
  std::string name;
  enum class Kind : std::uint8_t { kInteger, kReal, kChoice } kind = Kind::kInteger;
  std::string default_value;
  double minimum = 0;  // kInteger, kReal
  double maximum = 0;
  std::vector<std::string> choices;  // kChoice
  std::string help;

  std::string allowed() const;  // for people: "1 to 4", "off or on"
};

struct CompressorInfo {
  std::string name;
  Family family = Family::kFloats;
  std::string description;  // a title of at most 34 characters, a colon, and more
  std::string bits;         // that an entry takes, for people: "1 to 8", "used rows"
  std::uint8_t wire_id = 0;  // permanent, and first byte of every gathered payload
  std::uint8_t wire_version = 1;
  Aggregation aggregation = Aggregation::kLinear;  // with default values
  bool lossless = false;     // the mean is exact to float rounding
  bool unbiased = false;     // E[decoded] = value
  bool contractive = false;  // |value - decoded|^2 <= (1 - delta) |value|^2 with some delta > 0, from denormals up to FLT_MAX / world size;
                             // in expectation where places are drawn
  Unit unit = Unit::kElement;
  bool takes_stage = false;  // whether another compressor may carry what this one sends: "name/other:bits=4"
  // Settings that choose how much is sent, each with the value of its last parameter left open: "bits", "values=bf16,density"; "" where nothing
  // can be chosen. "rate=0.05..": from this value on. None: there is no curve to be drawn, as bits follow
  // from what is zero, say, or what is decoded is no gradient.
  std::vector<std::string> sizes = {""};
  bool learns = false;  // what it sends follows from the gradients of earlier steps
  std::vector<SpecParameter> parameters = {};  // the common ones (feedback, reduce) included
  std::string reference;
};

// In alphabetical order, "none" first.
std::span<const CompressorInfo> compressors();

// The same spec with every parameter written out, as workers compare it. Throws ArgumentError, naming the parameter,
// the value and what is allowed.
std::string canonical_spec(const std::string& spec);

}  // namespace thinwire
