// A compressor as the registry has it: what it is called, what it claims, what can be chosen of it, and how it is made. Rows stand beside their
// compressors: NAME_row() makes the row of NAME, and registry.cc lists them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compressors/shared/compressor.h"
#include "compressors/shared/spec_values.h"
#include "thinwire/registry.h"

namespace thinwire {

using MadeCompressor = std::unique_ptr<const Compressor>;

// What a compressor hands to the stage that follows it. It is cut anywhere, and its length may change from step to step: there are no rows or
// slices in it to be found again, so that only what works on single elements can carry it.
enum class Sends : std::uint8_t {
  kNothing,          // no stage may follow
  kElements,         // elements, and a place for what the stage remembers of their parameter
  kPassingElements,  // elements that mean something else in the next step: there is nothing to be remembered of them
};

struct Row {
  CompressorInfo info = {};  // takes_stage follows from `sends`
  Sends sends = Sends::kNothing;
  // `next` is null unless the row sends something and a stage follows. Throws ArgumentError for values that do not go together.
  MadeCompressor (*make)(const SpecValues& values, MadeCompressor next) = nullptr;
};

// --- parameters of a spec

SpecParameter whole_number(const char* name, const char* default_value, double minimum, double maximum, const char* help);
SpecParameter real(const char* name, const char* default_value, double minimum, double maximum, const char* help);
// The first is the default.
SpecParameter choice(const char* name, std::vector<std::string> choices, const char* help);
SpecParameter off_or_on(const char* name, const char* default_value, const char* help);

// Those that have one meaning everywhere.
SpecParameter feedback(const char* default_value);
SpecParameter reduce();

}  // namespace thinwire
