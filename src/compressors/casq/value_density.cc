#include "compressors/casq/value_density.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/statistics.h"

namespace thinwire {
namespace {

using Histogram = kernels::SignedHistogram;

// By Newton's method, in operations that round alike on every machine; libraries' cbrt() do not.
double cube_root(double x) {
  if (!(x > 0)) return 0;
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);
  for (; exponent % 3 != 0; ++exponent) mantissa *= 0.5;
  double root = 0.8;
  for (int i = 0; i < 8; ++i) root = (2 * root + mantissa / (root * root)) / 3;
  return std::ldexp(root, exponent / 3);
}

// A bin's share of the density of cube roots.
double cube_root_mass_of(const ValueDensity::Bin& bin) {
  const double width = bin.high - bin.low;
  return cube_root(bin.weight * width * width);
}

}  // namespace

ValueDensity::ValueDensity(std::vector<Bin> bins) : bins_(std::move(bins)) {
  prefix_.emplace_back();
  for (const Bin& bin : bins_) {
    const double centre = 0.5 * (bin.low + bin.high), width = bin.high - bin.low;
    Moments next = prefix_.back();
    next.weight += bin.weight;
    next.first += bin.weight * centre;
    next.second += bin.weight * (centre * centre + width * width / 12);
    prefix_.push_back(next);
  }
}

ValueDensity ValueDensity::of_histogram(std::span<const std::int32_t> counts) {
  const auto edge = [](int bin) { return bin == 0 ? 0.0 : kernels::histogram_lower_edge(bin); };
  const auto count = [counts](int bin) { return static_cast<double>(counts[static_cast<std::size_t>(bin)]); };
  std::vector<Bin> bins;
  for (int bin = Histogram::kBins - 1; bin >= 0; --bin)
    if (count(bin) > 0) bins.push_back({-edge(bin + 1), -edge(bin), count(bin)});
  for (int bin = 0; bin < Histogram::kBins; ++bin)
    if (count(bin + Histogram::kBins) > 0) bins.push_back({edge(bin), edge(bin + 1), count(bin + Histogram::kBins)});
  return ValueDensity(std::move(bins));
}

double ValueDensity::quantile(double share) const {
  const double sought = share * weight();
  std::size_t i = 0;
  while (i + 1 < bins_.size() && prefix_[i + 1].weight < sought) ++i;
  const Bin& bin = bins_[i];
  return bin.low + (bin.high - bin.low) * std::clamp((sought - prefix_[i].weight) / bin.weight, 0.0, 1.0);
}

ValueDensity ValueDensity::below(double value) const {
  std::vector<Bin> kept;
  for (const Bin& bin : bins_) {
    if (bin.low >= value) break;
    const double high = std::min(value, bin.high);
    kept.push_back({bin.low, high, bin.weight * (high - bin.low) / (bin.high - bin.low)});
  }
  return ValueDensity(std::move(kept));
}

ValueDensity ValueDensity::mirrored() const {
  std::vector<Bin> turned;
  for (auto bin = bins_.rbegin(); bin != bins_.rend(); ++bin) turned.push_back({-bin->high, -bin->low, bin->weight});
  return ValueDensity(std::move(turned));
}

ValueDensity ValueDensity::above(double value) const { return mirrored().below(-value).mirrored(); }

ValueDensity::Moments ValueDensity::up_to(double value) const {
  return up_to(value, std::partition_point(bins_.begin(), bins_.end(), [value](const Bin& bin) { return bin.high <= value; }));
}

ValueDensity::Moments ValueDensity::up_to(double value, std::vector<Bin>::const_iterator after) const {
  Moments moments = prefix_[static_cast<std::size_t>(after - bins_.begin())];
  if (after == bins_.end() || value <= after->low) return moments;
  const double width = value - after->low, centre = 0.5 * (value + after->low);
  const double part = after->weight * width / (after->high - after->low);
  moments.weight += part;
  moments.first += part * centre;
  moments.second += part * (centre * centre + width * width / 12);
  return moments;
}

ValueDensity::Moments ValueDensity::between(double low, double high) const { return up_to(high) - up_to(low); }

double ValueDensity::mean(double low, double high) const { return mean(between(low, high), low, high); }

double ValueDensity::mean(const Moments& moments, double low, double high) const {
  if (moments.weight > 1e-9 * weight()) return std::clamp(moments.first / moments.weight, low, high);
  return 0.5 * (low + high);
}

double ValueDensity::cube_root_mass() const {
  double mass = 0;
  for (const Bin& bin : bins_) mass += cube_root_mass_of(bin);
  return mass;
}

std::vector<double> ValueDensity::many_boundaries(int k) const {
  std::vector<double> boundaries(static_cast<std::size_t>(k - 1));
  if (empty()) return boundaries;
  const double share = cube_root_mass() / k;
  std::size_t bin = 0;
  double before = 0;  // mass of the bins before it
  for (std::size_t i = 0; i < boundaries.size(); ++i) {
    const double sought = share * static_cast<double>(i + 1);
    while (bin + 1 < bins_.size() && before + cube_root_mass_of(bins_[bin]) < sought) before += cube_root_mass_of(bins_[bin++]);
    const double within = std::clamp((sought - before) / cube_root_mass_of(bins_[bin]), 0.0, 1.0);
    boundaries[i] = bins_[bin].low + within * (bins_[bin].high - bins_[bin].low);
  }
  constexpr int kRounds = 40;
  std::vector<double> means(static_cast<std::size_t>(k));
  for (int round = 0; round < kRounds; ++round) {
    double low = bins_.front().low;
    Moments below;
    auto after = bins_.begin();  // boundaries ascend, so it only advances
    for (std::size_t i = 0; i < means.size(); ++i) {
      const double high = i < boundaries.size() ? boundaries[i] : bins_.back().high;
      while (after != bins_.end() && after->high <= high) ++after;
      const Moments above = up_to(high, after);
      means[i] = mean(above - below, low, high);
      low = high;
      below = above;
    }
    for (std::size_t i = 0; i < boundaries.size(); ++i) boundaries[i] = 0.5 * (means[i] + means[i + 1]);
  }
  return boundaries;
}

double ValueDensity::error(std::span<const float> boundaries) const {
  double error = 0, low = -std::numeric_limits<double>::max();
  for (std::size_t i = 0; i <= boundaries.size(); ++i) {
    const double high = i < boundaries.size() ? static_cast<double>(boundaries[i]) : std::numeric_limits<double>::max();
    const Moments moments = between(low, high);
    if (moments.weight > 0) error += std::max(0.0, moments.second - moments.first * moments.first / moments.weight);
    low = high;
  }
  return error;
}

double ValueDensity::energy() const { return prefix_.back().second; }

}  // namespace thinwire
