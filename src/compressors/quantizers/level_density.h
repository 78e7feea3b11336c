// How a chunk's values spread between -1 and 1, and which levels are best for that, if values are rounded to their neighbours at random
// without bias: what adaptive quantizers fit their levels by.
//
// A value r between neighbouring levels a and c has variance (c - r) (r - a). So all values between them together have what their number,
// their sum and their sum of squares tell.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace thinwire {

class LevelDensity {
 public:
  // Bins of either sign: eight an octave from 2^-27 to 1, evenly spaced within it. The first one begins at 0. Values are spread evenly over
  // their bin.
  static constexpr int kOctaves = 27, kBinsPerOctave = 8, kBins = kOctaves * kBinsPerOctave;
  // Ascending: kBins of negative values, then kBins of positive ones.
  using Weights = std::array<double, std::size_t{2} * kBins>;
  static constexpr std::size_t kEdges = std::size_t{2} * kBins + 1;

  explicit LevelDensity(const Weights& weights);
  // Of values from -1 to 1, or of a part of them where they are many; without -1 and 1, which are levels anyway.
  static LevelDensity of(std::span<const float> values);
  // What lies above 0, of the values or of their negatives, without the bin of zeros; and both together, as of magnitudes.
  LevelDensity positive() const;
  LevelDensity negative() const;
  LevelDensity magnitudes() const;
  // The density above 0 of a distribution: cumulated(x) lies below x.
  template <class Cumulated>
  static LevelDensity of_distribution(const Cumulated& cumulated) {
    Weights weights{};
    double below = cumulated(0.0);
    for (int bin = 0; bin < kBins; ++bin) {
      const double up_to = cumulated(edge(kBins + bin + 1));
      weights[static_cast<std::size_t>(kBins + bin)] = up_to - below;
      below = up_to;
    }
    return LevelDensity(weights);
  }

  // How many values there are, their sum, and the sum of their squares.
  struct Moments {
    double mass = 0, first = 0, second = 0;
    Moments operator-(const Moments& other) const { return {mass - other.mass, first - other.first, second - other.second}; }
  };
  Moments all() const { return up_to(1) - up_to(-1); }
  // Of the values between neighbouring levels a < c, all together.
  double variance(double a, double c) const;
  double variance(std::span<const double> levels) const;

  // Levels between the first one and the last one, which are given, as they are best if they are many: as dense as the cube root of the
  // values' density (Panter and Dite 1951).
  void divide(std::span<double> levels) const;
  // Levels of less variance: each in turn goes where it is best between its neighbours, which is where as many values lie above it, up to
  // the upper neighbour, as the values between these two have of the way from the lower to the upper one. The first one and the last one
  // stay. Source: Faghri et al., NeurIPS 2020, coordinate descent.
  void descend(std::span<double> levels) const;
  // Levels of the least variance, of those that are edges of bins with values, by dynamic programming. False, and no levels, if there are
  // not twice as many such edges: bins are too wide then to choose among. The first one and the last one become -1 and 1.
  bool choose(std::span<double> levels) const;

  // The i-th of kEdges edges, ascending.
  static double edge(int i);

 private:
  // Of what lies between 0 and x; all are negative of what that is where x is negative.
  Moments up_to(double x) const;
  double quantile(double mass) const;  // up_to(x).mass is that

  Weights weights_;
  std::array<Moments, kEdges> at_;  // up_to() of each edge
};

}  // namespace thinwire
