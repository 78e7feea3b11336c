#include "compressors/quantizers/level_density.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/statistics.h"

namespace thinwire {
namespace {

using Histogram = kernels::SignedHistogram;
constexpr auto kBins = LevelDensity::kBins;
constexpr auto kEdges = LevelDensity::kEdges;

const std::array<double, kEdges>& edges() {
  static const std::array<double, kEdges> all = [] {
    std::array<double, kEdges> made{};
    for (int i = 1; i <= kBins; ++i) {
      const double within = 1 + static_cast<double>(i % LevelDensity::kBinsPerOctave) / LevelDensity::kBinsPerOctave;
      const double magnitude = std::ldexp(within, i / LevelDensity::kBinsPerOctave - LevelDensity::kOctaves);
      made[static_cast<std::size_t>(kBins + i)] = magnitude;
      made[static_cast<std::size_t>(kBins - i)] = -magnitude;
    }
    return made;
  }();
  return all;
}

// The bin of a magnitude below 1: a double's exponent and the first bits of its mantissa, read as one number.
int bin_of(double magnitude) {
  constexpr int kShift = 52 - std::bit_width(LevelDensity::kBinsPerOctave - 1U);
  constexpr auto kFirst = static_cast<int>((1023 - LevelDensity::kOctaves) * LevelDensity::kBinsPerOctave);
  return std::clamp(static_cast<int>(std::bit_cast<std::uint64_t>(magnitude) >> kShift) - kFirst, 0, kBins - 1);
}

double width_of(std::size_t bin) { return edges()[bin + 1] - edges()[bin]; }

}  // namespace

double LevelDensity::edge(int i) { return edges()[static_cast<std::size_t>(i)]; }

LevelDensity::LevelDensity(const Weights& weights) : weights_(weights) {
  // From 0 outwards, so that small values' sums are not rounded to those of large ones.
  const auto add = [this](Moments sum, std::size_t bin, double sign) {
    const double centre = 0.5 * (edges()[bin] + edges()[bin + 1]), width = width_of(bin), weight = sign * weights_[bin];
    return Moments{sum.mass + weight, sum.first + weight * centre, sum.second + weight * (centre * centre + width * width / 12)};
  };
  at_[kBins] = {};
  for (std::size_t i = kBins; i < 2 * kBins; ++i) at_[i + 1] = add(at_[i], i, 1);
  for (std::size_t i = kBins; i-- > 0;) at_[i] = add(at_[i + 1], i, -1);
}

LevelDensity LevelDensity::of(std::span<const float> values) {
  constexpr std::size_t kEnough = 8192, kRun = 64;
  constexpr float kScale = 32768 * (1 + 0x1p-20F);  // 1, even if it was rounded, becomes 2^15, of which the histogram has 27 octaves below
  static_assert(Histogram::kLowestOctave + kOctaves == 15 && Histogram::kBinsPerOctave == 2 * kBinsPerOctave);
  std::array<std::int32_t, std::size_t{2} * Histogram::kBins> counts{};
  const std::size_t stride = std::max<std::size_t>(values.size() / kEnough, 1) * kRun;
  for (std::size_t first = 0; first < values.size(); first += stride)
    kernels::add_to_histogram(values.subspan(first, std::min(kRun, values.size() - first)), kScale, counts);
  Weights weights{};
  for (std::size_t bin = 0; bin < std::size_t{2} * kBins; ++bin) {
    weights[kBins + bin / 2] += counts[Histogram::kBins + bin];
    weights[kBins - 1 - bin / 2] += counts[bin];
  }
  return LevelDensity(weights);
}

LevelDensity LevelDensity::positive() const {
  Weights weights{};
  std::copy(weights_.begin() + kBins + 1, weights_.end(), weights.begin() + kBins + 1);
  return LevelDensity(weights);
}

LevelDensity LevelDensity::negative() const {
  Weights weights{};
  std::reverse_copy(weights_.begin(), weights_.begin() + kBins - 1, weights.begin() + kBins + 1);
  return LevelDensity(weights);
}

LevelDensity LevelDensity::magnitudes() const {
  Weights weights{};
  for (std::size_t bin = 0; bin < kBins; ++bin) weights[kBins + bin] = weights_[kBins + bin] + weights_[kBins - 1 - bin];
  return LevelDensity(weights);
}

LevelDensity::Moments LevelDensity::up_to(double x) const {
  const auto bin = static_cast<std::size_t>(x < 0 ? kBins - 1 - bin_of(-x) : kBins + bin_of(x));
  const double low = edges()[bin], high = edges()[bin + 1], begin = x < 0 ? high : low;
  const double width = x - begin, centre = 0.5 * (x + begin), part = weights_[bin] * width / (high - low);
  const Moments& before = at_[x < 0 ? bin + 1 : bin];
  return {before.mass + part, before.first + part * centre, before.second + part * (centre * centre + width * width / 12)};
}

double LevelDensity::quantile(double mass) const {
  const auto above =
      std::upper_bound(at_.begin() + 1, at_.end() - 1, mass, [](double sought, const Moments& at) { return sought < at.mass; });
  const auto bin = static_cast<std::size_t>(above - at_.begin()) - 1;
  const double held = at_[bin + 1].mass - at_[bin].mass;
  return edges()[bin] + (held > 0 ? std::clamp((mass - at_[bin].mass) / held, 0.0, 1.0) : 0.0) * width_of(bin);
}

double LevelDensity::variance(double a, double c) const {
  const Moments between = up_to(c) - up_to(a);
  return (a + c) * between.first - a * c * between.mass - between.second;
}

double LevelDensity::variance(std::span<const double> levels) const {
  double sum = 0;
  for (std::size_t i = 0; i + 1 < levels.size(); ++i) sum += variance(levels[i], levels[i + 1]);
  return sum;
}

void LevelDensity::divide(std::span<double> levels) const {
  std::array<double, kEdges> share{};
  const double low = levels.front(), high = levels.back(), steps = static_cast<double>(levels.size() - 1);
  for (std::size_t bin = 0; bin < 2 * kBins; ++bin) {
    const bool inside = edges()[bin] >= low && edges()[bin + 1] <= high;
    share[bin + 1] = share[bin] + (inside ? std::cbrt(weights_[bin] * width_of(bin) * width_of(bin)) : 0);
  }
  std::size_t bin = 0;
  for (std::size_t i = 1; i + 1 < levels.size(); ++i) {
    const double sought = static_cast<double>(i) / steps * share.back();
    while (bin + 1 < 2 * kBins && share[bin + 1] < sought) ++bin;
    const double held = share[bin + 1] - share[bin];
    levels[i] = std::clamp(edges()[bin] + (held > 0 ? (sought - share[bin]) / held : 0) * width_of(bin), levels[i - 1], high);
  }
}

void LevelDensity::descend(std::span<double> levels) const {
  constexpr int kRounds = 12;
  for (int round = 0; round < kRounds; ++round)
    for (std::size_t i = 1; i + 1 < levels.size(); ++i) {
      const double a = levels[i - 1], c = levels[i + 1];
      if (!(a < c)) continue;
      const Moments below = up_to(a), above = up_to(c);
      const double way = (above.first - below.first - a * (above.mass - below.mass)) / (c - a);
      levels[i] = std::clamp(quantile(above.mass - way), a, c);
    }
}

bool LevelDensity::choose(std::span<double> levels) const {
  constexpr std::size_t kMostLevels = 64;
  std::array<Moments, kEdges> at;
  std::array<double, kEdges> candidates;
  std::size_t count = 0;
  for (std::size_t i = 0; i < kEdges; ++i) {
    const bool is_end = i == 0 || i + 1 == kEdges;
    if (!is_end && !(weights_[i - 1] + weights_[i] > 0)) continue;
    candidates[count] = edges()[i];
    at[count++] = at_[i];
  }
  if (count < 2 * levels.size() || levels.size() > kMostLevels) return false;
  const auto variance_between = [&](std::size_t i, std::size_t j) {
    const Moments between = at[j] - at[i];
    return (candidates[i] + candidates[j]) * between.first - candidates[i] * candidates[j] * between.mass - between.second;
  };
  // least[j]: the variance of what lies below candidate j, which is a level, with k levels below it; before[k][j]: the last one of these.
  std::array<double, kEdges> least, fewer;
  std::array<std::array<std::uint16_t, kEdges>, kMostLevels> before;
  for (std::size_t j = 0; j < count; ++j) least[j] = variance_between(0, j);
  const std::size_t last = levels.size() - 1;
  before[1].fill(0);
  for (std::size_t k = 2; k <= last; ++k) {
    std::swap(least, fewer);
    // The last level below never goes back as j advances: the middle one of a range halves it for the others.
    const auto solve = [&](const auto& self, std::size_t low, std::size_t high, std::size_t from, std::size_t to) -> void {
      if (low >= high) return;
      const std::size_t j = low + (high - low) / 2;
      double found = std::numeric_limits<double>::infinity();
      std::size_t place = from;
      for (std::size_t i = from; i <= std::min(to, j); ++i)
        if (const double variance = fewer[i] + variance_between(i, j); variance < found) found = variance, place = i;
      least[j] = found;
      before[k][j] = static_cast<std::uint16_t>(place);
      self(self, low, j, from, place);
      self(self, j + 1, high, place, to);
    };
    solve(solve, 0, count, 0, count - 1);
  }
  std::size_t j = count - 1;
  for (std::size_t k = last; k > 0; --k) {
    levels[k] = candidates[j];
    j = before[k][j];
  }
  levels[0] = candidates[j];
  return true;
}

}  // namespace thinwire
