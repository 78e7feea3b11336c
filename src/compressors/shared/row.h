// A compressor as the registry has it: what it is called, what it claims, what can be chosen of it, and how it is made. Rows stand beside their
// compressors: NAME_row() makes the row of NAME, and registry.cc lists them.
#pragma once

#include <limits>
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
  kPassingElements,  // elements that mean something else after some steps: what the stage remembers is forgotten then, and nobody shows it a whole parameter
};

// What a spec claims. Tests prove it from outside, and need to know nothing else of a row. At first it is what the row's info says, and what
// nearly all rows claim; a row's claims() says where specs differ.
struct Claims {
  Aggregation aggregation = Aggregation::kLinear;
  bool lossless = false, unbiased = false, contractive = false;  // as in CompressorInfo
  bool on_average = false;  // contractive in expectation over what is drawn alone: one step may lose nearly all
  // With residuals, or without loss: the values of all workers are their mean, times the workers, and what is left in their residuals.
  bool conserves = true;
  double rounding = 1e-5;  // how far that may be off, as a share of the largest value: what sums round, no residual keeps
  double spread = 1;       // what a stage rounds in sums, in what it is handed, is so many times as much in the values that this stands for
  // Gradients whose largest magnitude is beyond these may be lost or overflow.
  double smallest = 0, largest = std::numeric_limits<float>::max();
  bool remembers = false;  // a step without residuals depends on what earlier steps held
  bool together = false;   // what a parameter's mean is depends on what is reduced together with it
  double bits = 32;        // that a worker sends at most for an entry, where none is zero; apart from 64 bytes a message and 64 a chunk
  double lost = 0.3;       // of the energy of evenly spread values, by one step at most: one bit leaves a quarter
};

// What of two stages can be claimed together.
Claims operator&(const Claims& sender, const Claims& carrier);

// What tests of few steps and short parameters need to show what a row does. Settings are as they stand in a spec, behind the name.
struct Trials {
  std::string brief = {};                 // of all specs: "learn=1,lag=0"
  std::vector<std::string> further = {};  // worth a case beyond every parameter's choices and ends; stages may follow: "mode=exact/casq:bits=1"
  std::vector<std::string> idle = {};     // choices that do nothing unless another parameter has not its default: tried in `further` alone
};

struct Row {
  CompressorInfo info = {};  // takes_stage follows from `sends`, and unit from what is made with default values
  Sends sends = Sends::kNothing;
  // `next` is null unless the row sends something and a stage follows. Throws ArgumentError for values that do not go together.
  MadeCompressor (*make)(const SpecValues& values, MadeCompressor next) = nullptr;
  // What is claimed for these values; null: what is usual.
  Claims (*claims)(const SpecValues& values, Claims usual) = nullptr;
  Trials trials = {};
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
