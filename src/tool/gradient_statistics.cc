#include "tool/gradient_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>

namespace thinwire::tool {
namespace {

using Matrix = std::vector<std::vector<double>>;

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Turns rows and columns p and q so that the entry between them becomes 0.
void rotate(Matrix& a, std::size_t p, std::size_t q) {
  const double tau = (a[q][q] - a[p][p]) / (2 * a[p][q]);
  const double t = (tau >= 0 ? 1 : -1) / (std::abs(tau) + std::sqrt(1 + tau * tau));
  const double c = 1 / std::sqrt(1 + t * t), s = t * c;
  for (std::size_t k = 0; k < a.size(); ++k) {
    const double kp = a[k][p], kq = a[k][q];
    a[k][p] = c * kp - s * kq;
    a[k][q] = s * kp + c * kq;
  }
  for (std::size_t k = 0; k < a.size(); ++k) {
    const double pk = a[p][k], qk = a[q][k];
    a[p][k] = c * pk - s * qk;
    a[q][k] = s * pk + c * qk;
  }
}

// Of a symmetric matrix, by Jacobi's method.
std::vector<double> eigenvalues(Matrix a) {
  constexpr int kMostSweeps = 12;
  double energy = 0;
  for (const auto& row : a) energy += std::inner_product(row.begin(), row.end(), row.begin(), 0.0);
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double off = 0;
    for (std::size_t p = 0; p < a.size(); ++p)
      for (std::size_t q = p + 1; q < a.size(); ++q) off += a[p][q] * a[p][q];
    if (off <= 1e-18 * energy) break;
    for (std::size_t p = 0; p < a.size(); ++p)
      for (std::size_t q = p + 1; q < a.size(); ++q)
        if (a[p][q] * a[p][q] > 1e-24 * energy) rotate(a, p, q);
  }
  std::vector<double> values;
  for (std::size_t i = 0; i < a.size(); ++i) values.push_back(std::max(0.0, a[i][i]));
  return values;
}

std::vector<double> spectrum_of(std::span<const float> values, std::uint64_t rows) {
  if (rows < 2 || values.size() / rows < 2) return {};
  const std::size_t columns = values.size() / rows, taken = std::min<std::size_t>(rows, GradientStatistics::kMostRows);
  const auto row = [&](std::size_t i) { return values.subspan(i * rows / taken * columns, columns); };
  Matrix products(taken, std::vector<double>(taken));
  for (std::size_t i = 0; i < taken; ++i)
    for (std::size_t j = i; j < taken; ++j) products[i][j] = products[j][i] = dot(row(i), row(j));
  std::vector<double> spectrum = eigenvalues(std::move(products));
  std::sort(spectrum.begin(), spectrum.end(), std::greater<>());
  const double energy = std::accumulate(spectrum.begin(), spectrum.end(), 0.0);
  if (!(energy > 0)) return {};
  for (double& value : spectrum) value /= energy;
  return spectrum;
}

double zero_rows_of(std::span<const float> values, std::uint64_t rows) {
  if (rows < 1 || values.empty()) return 0;
  const std::size_t columns = values.size() / rows;
  std::size_t zeros = 0;
  for (std::size_t r = 0; r < rows; ++r)
    zeros += std::ranges::all_of(values.subspan(r * columns, columns), [](float x) { return x == 0; }) ? 1 : 0;
  return static_cast<double>(zeros) / static_cast<double>(rows);
}

void count(std::span<const float> values, GradientStatistics& statistics) {
  for (const float value : values) {
    if (value == 0) continue;
    const double octaves = std::log2(std::abs(static_cast<double>(value)) / statistics.mean_magnitude);
    const double bin = std::floor(2 * (octaves - GradientStatistics::kLowestOctave));
    auto& counts = value < 0 ? statistics.negative : statistics.positive;
    ++counts[static_cast<std::size_t>(std::clamp(bin, 0.0, GradientStatistics::kBins - 1.0))];
  }
}

double energy_of_largest(std::span<const float> values, std::size_t largest) {
  std::vector<double> squares;
  for (const float value : values) squares.push_back(static_cast<double>(value) * static_cast<double>(value));
  std::nth_element(squares.begin(), squares.begin() + static_cast<std::ptrdiff_t>(largest), squares.end(), std::greater<>());
  return std::accumulate(squares.begin(), squares.begin() + static_cast<std::ptrdiff_t>(largest), 0.0);
}

}  // namespace

GradientStatistics measure_gradient(std::span<const float> values, std::uint64_t rows) {
  GradientStatistics result;
  result.elements = values.size();
  if (values.empty()) return result;
  const auto n = static_cast<double>(values.size());
  double sum = 0, squares = 0, zeros = 0;
  for (const float value : values) {
    const double magnitude = std::abs(static_cast<double>(value));
    sum += magnitude;
    squares += magnitude * magnitude;
    zeros += value == 0 ? 1 : 0;
    result.largest = std::max(result.largest, magnitude);
  }
  result.mean_magnitude = sum / n;
  result.rms = std::sqrt(squares / n);
  result.zeros = zeros / n;
  result.zero_rows = zero_rows_of(values, rows);
  if (!(squares > 0)) return result;
  double fourth = 0;
  for (const float value : values) fourth += std::pow(static_cast<double>(value) / result.rms, 4);
  result.kurtosis = fourth / n;
  result.top_percent = energy_of_largest(values, (values.size() + 99) / 100) / squares;
  count(values, result);
  result.spectrum = spectrum_of(values, rows);
  return result;
}

std::size_t rank_for(const std::vector<double>& spectrum, double share) {
  double held = 0;
  for (std::size_t rank = 0; rank < spectrum.size(); ++rank)
    if ((held += spectrum[rank]) >= share * (1 - 1e-9)) return rank + 1;
  return spectrum.size();
}

}  // namespace thinwire::tool
