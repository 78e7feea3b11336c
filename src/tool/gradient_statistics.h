// What a parameter's gradient looks like.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace thinwire::tool {

struct GradientStatistics {
  // Counts by magnitude, two bins an octave from 2^kLowestOctave times the mean magnitude on; zeros are not in it.
  static constexpr int kLowestOctave = -12, kOctaves = 24, kBins = 2 * kOctaves;

  std::uint64_t elements = 0;
  double mean_magnitude = 0;
  double rms = 0;
  double largest = 0;         // magnitude
  double kurtosis = 0;        // E x^4 / (E x^2)^2: 3 for a Gaussian, 6 for Laplace; 0 where nothing is
  double top_percent = 0;     // share of the energy in the largest hundredth of the magnitudes
  double zeros = 0;           // share of entries
  double zero_rows = 0;       // share of rows (of the first dimension) that are all zeros
  std::array<std::uint64_t, kBins> negative{}, positive{};
  // Shares of the energy in the singular vectors of the parameter as a matrix (first dimension by the rest), the largest
  // first; of kMostRows rows of it where it has more, evenly spaced. Empty for vectors and zeros.
  std::vector<double> spectrum;
  static constexpr std::size_t kMostRows = 96;
};

// values: finite. rows: the first dimension, 1 or less for a vector; divides values.size().
GradientStatistics measure_gradient(std::span<const float> values, std::uint64_t rows);

// Sums of squares.
double energy_of(std::span<const float> values);
double energy_of_difference(std::span<const float> a, std::span<const float> b);
// Nothing if the whole is zero.
std::optional<double> ratio(double part, double whole);

// The fewest singular vectors that hold this share of the energy; 0 without a spectrum.
std::size_t rank_for(const std::vector<double>& spectrum, double share);

}  // namespace thinwire::tool
