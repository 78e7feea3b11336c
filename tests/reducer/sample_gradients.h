// Gradients of every kind that has caught a compressor out.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "reducer/workers.h"

namespace thinwire::testing {

inline const std::vector<std::string>& contents() {
  static const std::vector<std::string> names = {"normal", "laplace", "zeros", "constant", "one_signed", "outlier",
                                                 "denormals", "one_worker_small", "one_worker_zero", "sparse", "ramp"};
  return names;
}

inline Gradients make_gradients(const std::string& content, int workers, std::size_t elements, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::exponential_distribution<float> exponential;
  Gradients gradients(static_cast<std::size_t>(workers), std::vector<float>(elements));
  for (std::size_t w = 0; w < gradients.size(); ++w)
    for (std::size_t i = 0; i < elements; ++i) {
      float value = 0.01f * normal(random);
      if (content == "laplace") value = exponential(random) * (random() % 2 ? 1.0f : -1.0f);
      if (content == "zeros") value = 0;
      if (content == "constant") value = 0.3f;
      if (content == "one_signed") value = -std::abs(value);
      if (content == "outlier" && i == elements / 2) value = 5e37f;
      if (content == "denormals") value *= 1e-38f;
      if (content == "one_worker_small" && w == 0) value *= 1e-3f;
      if (content == "one_worker_zero" && w == 0) value = 0;
      if (content == "sparse" && random() % 50 != 0) value = 0;
      if (content == "ramp") value = static_cast<float>(i) - static_cast<float>(elements) / 2;
      gradients[w][i] = value;
    }
  return gradients;
}

}  // namespace thinwire::testing
