// One-pass statistics of float spans. Every result has the same bits on every SIMD target: sums are kept in 16 fixed
// lanes (lane i adds the elements i, i+16, i+32, ... in order; the tail goes to lanes 0, 1, ...) which are then added
// in lane order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace thinwire::kernels {

// What one pass over values learns. With a non-finite value, `finite` is false and the sums are unspecified.
// Sums are exact to float rounding while every |x| is zero or within [1e-18, 1e15]; see kLargestForFloatSums.
struct Magnitudes {
  float largest = 0;       // max |x|
  float sum_abs = 0;       // sum of |x|
  float sum_squares = 0;   // sum of x^2
  bool finite = true;
};
Magnitudes measure(std::span<const float> values);

// Whether every value is finite, and the largest magnitude: infinity or NaN where one is not.
struct Scan {
  bool finite = true;
  float largest = 0;
};
Scan scan(std::span<const float> values);
// values <- values * factor; returns what scan() would have before.
Scan scan_and_multiply(std::span<float> values, float factor);

// values <- values * factor.
void multiply(std::span<float> values, float factor);

// The same of every `bucket` neighbours at once: largest[b] is the largest magnitude of the b-th ones, of which the last ones may be fewer; they are
// multiplied by factors[b]. Pre: one of largest, or of factors, for each; values to scan are finite.
void scan_buckets(std::span<const float> values, std::size_t bucket, std::span<float> largest);
void multiply_buckets(std::span<float> values, std::size_t bucket, std::span<const float> factors);
// What values are multiplied by to be divided; where that would be infinite, they are made larger first. Pre: divisor > 0; no |value| is more than 2^100 times
// larger.
float inverse_of_denormal(float divisor, std::span<float> values);
inline float inverse_of(float divisor, std::span<float> values) {
  return divisor >= std::numeric_limits<float>::min() ? 1 / divisor : inverse_of_denormal(divisor, values);
}
void divide(std::span<float> values, float divisor);

// What magnitudes are on either side of a bound. Sums are of floats, as measure()'s; where they leave the range of floats, of doubles.
struct Split {
  std::size_t from = 0;    // how many are not below the bound
  double excess = 0;       // the sum of what those are beyond it
  double below = 0;        // the sum of all others
};
// Pre: values finite, bound >= 0.
Split split_magnitudes(std::span<const float> values, float bound);

// Sums in double precision.
struct Moments {
  double sum = 0;
  double sum_squares = 0;
};
Moments moments(std::span<const float> values);
// Their sum of squares.
double squared_norm(std::span<const float> values);

// A histogram of signed magnitudes for training clusters, with 16 bins an octave, evenly spaced within it. An edge
// belongs to the bin above. |x| * inverse_scale falls into bin 0 below 2^kLowestOctave too, and into the last bin from
// 2^(kLowestOctave + kOctaves) on. Zeros count as negative.
struct SignedHistogram {
  static constexpr int kLowestOctave = -12;
  static constexpr int kOctaves = 28;
  static constexpr int kBinsPerOctave = 16;
  static constexpr int kBins = kOctaves * kBinsPerOctave;  // a sign
};
// Adds to counts[0 .. kBins) for x <= 0 and counts[kBins .. 2 kBins) for x > 0. Non-finite values are left out.
void add_to_histogram(std::span<const float> values, float inverse_scale, std::span<std::int32_t> counts);
// The value (of magnitude, at inverse_scale = 1) in the middle of a bin, and at its lower edge.
double histogram_centre(int bin);
double histogram_lower_edge(int bin);

}  // namespace thinwire::kernels
