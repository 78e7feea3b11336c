// What a histogram of signed magnitudes says of its values, if those of a bin are spread evenly over it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace thinwire {

class ValueDensity {
 public:
  struct Bin {
    double low, high, weight;
  };

  // Bins in ascending order that do not overlap, none empty.
  explicit ValueDensity(std::vector<Bin> bins);
  // counts: as kernels::add_to_histogram makes them.
  static ValueDensity of_histogram(std::span<const std::int32_t> counts);

  bool empty() const { return bins_.empty(); }
  const std::vector<Bin>& bins() const { return bins_; }
  double weight() const { return prefix_.back().weight; }
  // The value below which this share of the weight lies. Pre: not empty.
  double quantile(double share) const;
  // The part below and the part above a value.
  ValueDensity below(double value) const;
  ValueDensity above(double value) const;
  // The same with all signs turned.
  ValueDensity mirrored() const;

  // k - 1 ascending boundaries for many clusters: they begin where a density of cube roots is divided evenly, which is best
  // as clusters become many (Panter and Dite 1951), and move by Lloyd's algorithm.
  std::vector<double> many_boundaries(int k) const;
  // What the cube roots' density amounts to: k clusters are divided best between two densities in this proportion.
  double cube_root_mass() const;
  // The mean of what lies between two values; their middle where that is nothing.
  double mean(double low, double high) const;
  // Squared distances from the means of the clusters that the boundaries make, and from 0.
  double error(std::span<const float> boundaries) const;
  double energy() const;

 private:
  struct Moments {
    double weight = 0, first = 0, second = 0;
    Moments operator-(const Moments& other) const { return {weight - other.weight, first - other.first, second - other.second}; }
  };
  Moments up_to(double value) const;
  // after: the first bin that ends above the value.
  Moments up_to(double value, std::vector<Bin>::const_iterator after) const;
  Moments between(double low, double high) const;
  double mean(const Moments& moments, double low, double high) const;  // of what lies between the two

  std::vector<Bin> bins_;
  std::vector<Moments> prefix_;  // of the bins before each, and of all
};

}  // namespace thinwire
