// Gradients whose principal components are known, and every way to cut them into slices.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "reducer/workers.h"

namespace thinwire::testing {

// Every place of a parameter, by the slice that it belongs to: the definition of each axis, written out.
inline std::vector<std::vector<std::size_t>> slices_by_definition(const std::vector<std::size_t>& shape, const std::string& axis, std::size_t k) {
  const std::size_t out = shape[0], in = shape[1], kernel = shape[2] * shape[3];
  std::vector<std::vector<std::size_t>> slices;
  const auto cut = [&](std::size_t length, auto place) {
    for (std::size_t first = 0; first < length; first += k) {
      slices.emplace_back();
      for (std::size_t i = first; i < std::min(length, first + k); ++i) slices.back().push_back(place(i));
    }
  };
  if (axis == "flat") cut(out * in * kernel, [](std::size_t i) { return i; });
  for (std::size_t o = 0; axis == "filter" && o < out; ++o)
    cut(in * kernel, [&](std::size_t i) { return o * in * kernel + i; });
  for (std::size_t o = 0; axis == "in" && o < out; ++o)
    for (std::size_t x = 0; x < kernel; ++x) cut(in, [&](std::size_t i) { return (o * in + i) * kernel + x; });
  for (std::size_t o = 0; axis == "kernel" && o < out * in; ++o) cut(kernel, [&](std::size_t i) { return o * kernel + i; });
  for (std::size_t x = 0; axis == "out" && x < in * kernel; ++x) cut(out, [&](std::size_t i) { return i * in * kernel + x; });
  const std::size_t width = shape[3];  // kernels here are as high as wide, and there are about as many filters as channels
  for (std::size_t o = 0; axis == "square" && o < out; ++o)
    for (std::size_t y = 0; y < shape[2]; ++y)
      cut(in * width, [&](std::size_t i) { return ((o * in + i / width) * shape[2] + y) * width + i % width; });
  return slices;
}

// Gradients whose slices lie near a space of `rank` dimensions, the same in every step, with some noise. The larger `spread`, the smaller are some slices,
// of which `together` neighbours are alike, the same in every step.
class Structured {
 public:
  Structured(std::vector<std::vector<std::size_t>> slices, std::size_t rank, float noise, unsigned seed = 7, float spread = 0,
             std::size_t together = 1)
      : slices_(std::move(slices)), noise_(noise), random_(seed) {
    for (const auto& slice : slices_) {
      length_ = std::max(length_, slice.size());
      elements_ += slice.size();
    }
    for (std::size_t r = 0; r < rank; ++r) {
      directions_.emplace_back();
      for (std::size_t i = 0; i < length_; ++i) directions_.back().push_back(normal_(random_));
    }
    for (std::size_t s = 0; s < slices_.size(); ++s)
      scales_.push_back(spread == 0 ? 1 : s % together == 0 ? std::exp(-spread * std::abs(normal_(random_))) : scales_.back());
  }

  Gradients draw(int workers) {
    Gradients gradients(static_cast<std::size_t>(workers), std::vector<float>(elements_));
    for (auto& gradient : gradients)
      for (std::size_t s = 0; s < slices_.size(); ++s) {
        const auto& slice = slices_[s];
        std::vector<float> weights;
        for (std::size_t r = 0; r < directions_.size(); ++r) weights.push_back(normal_(random_));
        for (std::size_t i = 0; i < slice.size(); ++i) {
          float value = noise_ * normal_(random_) + 0.3f;
          for (std::size_t r = 0; r < directions_.size(); ++r) value += weights[r] * directions_[r][i];
          gradient[slice[i]] = scales_[s] * value;
        }
      }
    return gradients;
  }

 private:
  std::vector<std::vector<std::size_t>> slices_;
  float noise_;
  std::size_t length_ = 0, elements_ = 0;
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  std::vector<std::vector<float>> directions_;
  std::vector<float> scales_;
};

inline std::vector<float> mean_of(const Gradients& gradients) {
  std::vector<float> mean(gradients[0].size());
  for (std::size_t i = 0; i < mean.size(); ++i) {
    double sum = 0;
    for (const auto& gradient : gradients) sum += static_cast<double>(gradient[i]);
    mean[i] = static_cast<float>(sum / static_cast<double>(gradients.size()));
  }
  return mean;
}

inline double relative_error(const std::vector<float>& a, const std::vector<float>& exact) {
  double error = 0, energy = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(exact[i]);
    error += difference * difference;
    energy += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
  }
  return error / energy;
}

inline void expect_alike(const Gradients& means) {
  for (std::size_t w = 1; w < means.size(); ++w)
    ASSERT_EQ(std::memcmp(means[0].data(), means[w].data(), means[0].size() * sizeof(float)), 0) << "worker " << w;
}

struct Cut {
  std::string axis;
  std::vector<std::size_t> shape;
  std::size_t slice;
  std::size_t entries;  // K, after lines were divided evenly
};

inline std::vector<Cut> cuts() {
  return {{"filter", {40, 6, 3, 3}, 64, 54},   {"filter", {40, 16, 3, 3}, 64, 54},  // 144 = 3 x 54 - 18: three parts of whole kernels
          {"flat", {64, 6, 3, 3}, 64, 64},     {"flat", {37, 5, 3, 3}, 64, 64},     {"in", {40, 24, 3, 3}, 64, 24},
          {"in", {40, 50, 3, 3}, 32, 25},      {"kernel", {40, 16, 5, 5}, 64, 25},  {"out", {60, 6, 3, 3}, 64, 60},
          {"out", {70, 6, 3, 3}, 32, 32},      {"square", {24, 20, 3, 3}, 64, 60},  {"square", {24, 23, 3, 3}, 32, 24},
          {"filter", {300, 100, 3, 3}, 1024, 900}};
}

inline std::string name_of_cut(const ::testing::TestParamInfo<Cut>& cut) {
  return cut.param.axis + "_" + std::to_string(cut.param.shape[0]) + "_" + std::to_string(cut.param.shape[1]) + "_" +
         std::to_string(cut.param.slice);
}

inline Layout layout_of(const Cut& cut) {
  std::vector<std::int64_t> shape(cut.shape.begin(), cut.shape.end());
  return Layout({{"conv.weight", shape}});
}

inline std::size_t whole_line(const Cut& cut) {  // along the axis
  if (cut.axis == "filter") return cut.shape[1] * cut.shape[2] * cut.shape[3];
  if (cut.axis == "in") return cut.shape[1];
  if (cut.axis == "square") return cut.shape[1] * cut.shape[3];
  if (cut.axis == "kernel") return cut.shape[2] * cut.shape[3];
  return cut.axis == "out" ? cut.shape[0] : cut.shape[0] * cut.shape[1] * cut.shape[2] * cut.shape[3];
}

inline const Layout kConv({{"conv.weight", {64, 16, 3, 3}}});

// Payloads add up: what several workers' gradients decode to is what their mean alone does, to rounding, in every step.
inline void expect_linear(const Cut& cut, const std::string& spec, int count, int steps) {
  SCOPED_TRACE(spec + ", " + std::to_string(count) + " workers");
  Workers workers(layout_of(cut), count, {.compressor = spec}), alone(layout_of(cut), 1, {.compressor = spec});
  Structured gradients(slices_by_definition(cut.shape, cut.axis, cut.entries), 5, 0.5f);
  for (int step = 0; step < steps; ++step) {
    Gradients means = gradients.draw(count);
    Gradients mean{mean_of(means)};
    workers.step(means);
    alone.step(mean);
    expect_alike(means);
    EXPECT_LT(relative_error(means[0], mean[0]), 1e-6) << "step " << step;
  }
}

}  // namespace thinwire::testing
