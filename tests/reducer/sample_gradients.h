// Gradients of every kind that has caught a compressor out.
#pragma once

#include <cmath>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "reducer/workers.h"

namespace thinwire::testing {

inline const std::vector<std::string>& contents() {
  static const std::vector<std::string> names = {"normal", "laplace", "zeros", "constant", "one_signed", "outlier",
                                                 "denormals", "one_worker_small", "one_worker_zero", "sparse", "ramp"};
  return names;
}

inline Gradients draw_gradients(const std::string& content, int workers, std::size_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::exponential_distribution<float> exponential;
  const auto is = [&](const char* name) { return content == name; };
  const bool laplace = is("laplace"), zeros = is("zeros"), constant = is("constant"), one_signed = is("one_signed"), outlier = is("outlier"),
             denormals = is("denormals"), one_worker_small = is("one_worker_small"), one_worker_zero = is("one_worker_zero"),
             sparse = is("sparse"), ramp = is("ramp");
  Gradients gradients(static_cast<std::size_t>(workers), std::vector<float>(elements));
  for (std::size_t w = 0; w < gradients.size(); ++w)
    for (std::size_t i = 0; i < elements; ++i) {
      float value = 0.01f * normal(random);
      if (laplace) value = exponential(random) * (random() % 2 ? 1.0f : -1.0f);
      if (zeros) value = 0;
      if (constant) value = 0.3f;
      if (one_signed) value = -std::abs(value);
      if (outlier && i == elements / 2) value = 5e37f;
      if (denormals) value *= 1e-38f;
      if (one_worker_small && w == 0) value *= 1e-3f;
      if (one_worker_zero && w == 0) value = 0;
      if (sparse && random() % 50 != 0) value = 0;
      if (ramp) value = static_cast<float>(i) - static_cast<float>(elements) / 2;
      gradients[w][i] = value;
    }
  return gradients;
}

// Suites ask for the same ones for every compressor, and to draw them takes longer than most steps: they are kept, 128 MB of them.
inline Gradients make_gradients(const std::string& content, int workers, std::size_t elements, unsigned seed = 1) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, int, std::size_t, unsigned>, Gradients> drawn;
  static std::size_t room = std::size_t{1} << 25;
  const std::lock_guard lock(mutex);
  const auto key = std::tuple(content, workers, elements, seed);
  if (const auto found = drawn.find(key); found != drawn.end()) return found->second;
  Gradients gradients = draw_gradients(content, workers, elements, seed);
  const std::size_t values = elements * static_cast<std::size_t>(workers);
  if (values > room) return gradients;
  room -= values;
  return drawn[key] = std::move(gradients);
}

}  // namespace thinwire::testing
