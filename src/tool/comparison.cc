#include "tool/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "thinwire/errors.h"
#include "thinwire/trial.h"
#include "tool/gradient_statistics.h"

namespace thinwire::tool {
namespace {

constexpr double kSlack = 1.03;  // heads and units

std::string number_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return text.data();
}

// What one of a compressor's settings loses at how many bits.
class Curve {
 public:
  // size: of CompressorInfo::sizes.
  Curve(const CompressorInfo& info, std::string size, const ChosenGradient& gradient, double energy)
      : info_(info), gradient_(gradient), energy_(energy) {
    if (size.ends_with("..")) {
      const std::size_t equals = size.rfind('=');
      least_ = std::stod(size.substr(equals + 1));
      size.resize(equals);
    }
    open_ = size.substr(size.rfind(',') + 1);
    result_.name = size.empty() ? info.name : info.name + ":" + size;
    result_.family = info.family;
  }

  const std::string& name() const { return result_.name; }
  ComparedCurve measured(const std::vector<double>& bits) {
    const SpecParameter* const open = parameter(open_);
    if (!open) measure("");
    else if (open->kind == SpecParameter::Kind::kChoice) for (const std::string& value : open->choices) measure(value);
    else if (open->kind == SpecParameter::Kind::kInteger) measure_whole(*open);
    else search(*open, bits);
    std::ranges::sort(result_.points, {}, &ComparedPoint::bits);
    return std::move(result_);
  }

 private:
  const SpecParameter* parameter(const std::string& name) const {
    const auto found = std::ranges::find(info_.parameters, name, &SpecParameter::name);
    return found == info_.parameters.end() ? nullptr : &*found;
  }

  // value: of the setting that is open; empty if none is.
  ComparedPoint measure(const std::string& value) {
    std::string spec = result_.name + (value.empty() ? "" : "=" + value);
    if (info_.learns && parameter("feedback")) spec += ",feedback=off";
    const auto last = gradient_.last();
    const bool all = info_.learns;
    const TrialReport report =
        run_trial(gradient_.layout, all ? std::span(gradient_.values) : last, 1, all ? gradient_.steps : 1, {.compressor = spec});
    const auto decoded = std::span(report.mean).last(last.size());
    const ComparedPoint point{spec, report.per_step.back().bits_per_element.value_or(0), energy_of_difference(last, decoded) / energy_};
    if (std::isfinite(point.error)) result_.points.push_back(point);
    return point;
  }

  void measure_whole(const SpecParameter& open) {
    const int least = static_cast<int>(open.minimum), most = static_cast<int>(open.maximum);
    const bool few = most - least < 16;
    for (int value = few ? least : std::max(least, 1); value <= most; value = few ? value + 1 : 2 * value) measure(std::to_string(value));
  }

  // Values of a real number, between whose ends bits rise or fall, that take as many as is asked for.
  void search(const SpecParameter& open, const std::vector<double>& bits) {
    constexpr int kTries = 6;
    struct Known {
      double bits, value;
    };
    std::vector<Known> known;
    const auto learn = [&](double value) {
      const std::string text = number_text(value);
      known.push_back({measure(text).bits, std::stod(text)});
      std::ranges::sort(known, {}, &Known::bits);
    };
    learn(least_.value_or(open.minimum));
    learn(open.maximum);
    for (const double wanted : bits)
      for (int i = 0; i < kTries; ++i) {
        const auto above = std::ranges::upper_bound(known, kSlack * wanted, {}, &Known::bits);
        if (above == known.begin() || above == known.end()) break;
        const Known low = above[-1], high = *above;
        if (low.bits > wanted / kSlack) break;
        const double way = std::log(wanted / low.bits) / std::log(high.bits / low.bits);
        learn(low.value * std::pow(high.value / low.value, way));
      }
  }

  const CompressorInfo& info_;
  const ChosenGradient& gradient_;
  double energy_;
  std::string open_;  // the setting whose value is
  std::optional<double> least_;
  ComparedCurve result_;
};

struct Variance {
  double variance, entries;
};

std::vector<Variance> variances_of(const ChosenGradient& gradient) {
  std::vector<Variance> all;
  for (std::size_t p = 0; p < gradient.layout.parameters().size(); ++p) {
    const auto values = gradient.last().subspan(gradient.layout.offset(p), gradient.layout.parameters()[p].elements());
    for (std::size_t first = 0; first < values.size(); first += kBoundBlock) {
      const auto block = values.subspan(first, std::min(kBoundBlock, values.size() - first));
      const auto entries = static_cast<double>(block.size());
      all.push_back({energy_of(block) / entries, entries});
    }
  }
  return all;
}

// Reverse water-filling (Cover and Thomas, Elements of Information Theory, 10.3.3): a block of variance s is coded with an error of
// min(s, level), in half the logarithm of s / level bits an entry.
double least_error(const std::vector<Variance>& blocks, double bits, double energy, double elements) {
  double low = 0, high = 0;
  for (const Variance& block : blocks) high = std::max(high, block.variance);
  const auto bits_at = [&](double level) {
    double sum = 0;
    for (const auto& [variance, entries] : blocks)
      if (variance > level) sum += 0.5 * entries * std::log2(variance / level);
    return sum / elements;
  };
  constexpr int kHalvings = 200;
  for (int i = 0; i < kHalvings; ++i) {
    const double level = low + (high - low) / 2;
    (bits_at(level) > bits ? low : high) = level;
  }
  double error = 0;
  for (const auto& [variance, entries] : blocks) error += entries * std::min(variance, high);
  return error / energy;
}

}  // namespace

const ComparedPoint* ComparedCurve::at(double bits, double above) const {
  const ComparedPoint* found = nullptr;
  for (const ComparedPoint& point : points)
    if (point.bits <= kSlack * bits && point.bits > kSlack * above) found = &point;
  return found;
}

std::vector<double> Comparison::least() const {
  std::vector<double> all(bits.size(), std::numeric_limits<double>::infinity());
  for (std::size_t b = 0; b < all.size(); ++b)
    for (const ComparedCurve& curve : curves)
      if (const ComparedPoint* found = at(curve, b)) all[b] = std::min(all[b], found->error);
  return all;
}

Comparison compare(const ChosenGradient& gradient, const std::vector<double>& bits, const std::function<void(const std::string&)>& progress) {
  const double energy = energy_of(gradient.last()), elements = static_cast<double>(gradient.last().size());
  if (!(energy > 0)) throw Error("the gradient is all zeros, of which nothing can be lost; choose another one by --step or --worker");
  Comparison result;
  result.elements = gradient.last().size();
  result.bits = bits;
  for (const CompressorInfo& info : compressors()) {
    if (info.lossless) continue;
    if (info.learns && gradient.steps < 2) {
      result.left_out.push_back(info.name);
      continue;
    }
    for (const std::string& size : info.sizes) {
      Curve curve(info, size, gradient, energy);
      progress(curve.name());
      result.curves.push_back(curve.measured(bits));
    }
  }
  const std::vector<Variance> blocks = variances_of(gradient);
  for (const double rate : bits) {
    result.gaussian.push_back(std::exp2(-2 * rate));
    result.blocks.push_back(least_error(blocks, rate, energy, elements));
  }
  return result;
}

}  // namespace thinwire::tool
