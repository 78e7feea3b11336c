// Reverse water-filling with whole bits: how many bits each principal component's coefficients get, so that the least of the
// variance is lost, where levels of all workers add up in fields of words.
//
// A field of f bits holds sums of W workers' levels in [-L, L], L = floor((2^f - 1) / (2 W)): guard bits are part of f. A
// component of variance v whose coefficients are rounded to 2 L + 1 even steps, clipped at the ends, loses v e(L), with the
// best step for a normal distribution; one that is not sent loses v. Bits go where they save most: each upgrade along the
// lower convex hull of (f, e) saves v times the hull's slope a bit, and upgrades are taken in that order until the words are
// full. Without guard bits and with real numbers of bits that is reverse water-filling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace thinwire {

inline constexpr int kWidestField = 22;

// L above; 0: a field of this width holds no level of so many workers.
std::int32_t levels_of(int width, int world_size);

// Of a normal distribution with variance 1, the best even steps with `levels` of them to each side, and what is lost.
struct NormalQuantizer {
  double step = 0;
  double error = 1;
};
NormalQuantizer normal_quantizer(std::int32_t levels);

struct BitAllocation {
  std::vector<int> widths;   // bits of the leading components' fields, guard bits included; descending, none 0
  std::vector<float> steps;  // in units of the component's deviation
  double error = 0;          // what is expected to be lost of the sum of the variances
};

// `variances` in descending order. `group` coefficients of each component share `words` words of 32 bits.
BitAllocation allocate_bits(std::span<const float> variances, std::size_t group, std::size_t words, int world_size);

}  // namespace thinwire
