// Compressors compared on one gradient: how much of it each loses at how many bits, beside what any code of Gaussians must lose.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "thinwire/registry.h"
#include "tool/chosen_gradient.h"

namespace thinwire::tool {

struct ComparedPoint {
  std::string spec;
  double bits = 0;   // an element, everything counted that a worker sends
  double error = 0;  // |g - decoded|^2 / |g|^2
};

// A compressor with one of its settings open: "topk:values=bf16,density".
struct ComparedCurve {
  std::string name;
  Family family = Family::kFloats;
  std::vector<ComparedPoint> points;  // by rising bits

  // The largest that takes no more bits, by a thirtieth, but more than `above`; null if none does.
  const ComparedPoint* at(double bits, double above) const;
};

struct Comparison {
  std::uint64_t elements = 0;
  std::vector<double> bits;            // rising
  std::vector<ComparedCurve> curves;
  std::vector<double> gaussian;        // for each of `bits`, the least error of independent Gaussians of one variance: 2^-2R (Shannon 1959)
  std::vector<double> blocks;          // the same where each block of kBoundBlock entries has its own, which the decoder knows: reverse water-filling
  // What curve `curve` has for the b-th of `bits`: more than the one before allows; null if nothing.
  const ComparedPoint* at(const ComparedCurve& curve, std::size_t b) const { return curve.at(bits[b], b == 0 ? 0 : bits[b - 1]); }
  std::vector<double> least() const;  // of all curves' errors, for each of `bits`

  std::vector<std::string> left_out;   // compressors that learn from earlier steps, of which the recording has none
};
inline constexpr std::size_t kBoundBlock = 128;
inline constexpr std::size_t kMostBudgets = 8;  // that a table has room for

// Every compressor that is not lossless by itself, with feedback as its default says and no residual yet. Those that learn have been given the earlier steps,
// without feedback. bits: positive, rising. `progress` is told what comes next. Throws Error for a gradient of zeros.
Comparison compare(const ChosenGradient& gradient, const std::vector<double>& bits, const std::function<void(const std::string&)>& progress);

// One page without anything from elsewhere. `title` is text, not HTML.
std::string comparison_page(const Comparison& comparison, const std::string& title);

}  // namespace thinwire::tool
