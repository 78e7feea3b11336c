#include "tool/gradient_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>

// LAPACK, as Fortran sees it; OpenBLAS contains it.
extern "C" void dsyev_(const char* job, const char* triangle, const int* n, double* matrix, const int* stride, double* values,
                       double* work, const int* work_size, int* info);

namespace thinwire::tool {
namespace {

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Of a symmetric matrix of n rows; nothing if LAPACK does not find them.
std::vector<double> eigenvalues(std::vector<double> matrix, int n) {
  std::vector<double> values(static_cast<std::size_t>(n)), work(3 * values.size());
  const int work_size = static_cast<int>(work.size());
  int info = 0;
  dsyev_("N", "U", &n, matrix.data(), &n, values.data(), work.data(), &work_size, &info);
  if (info != 0) return {};
  for (double& value : values) value = std::max(0.0, value);
  return values;
}

std::vector<double> spectrum_of(std::span<const float> values, std::uint64_t rows) {
  if (rows < 2 || values.size() / rows < 2) return {};
  const std::size_t columns = values.size() / rows, taken = std::min<std::size_t>(rows, GradientStatistics::kMostRows);
  const auto row = [&](std::size_t i) { return values.subspan(i * rows / taken * columns, columns); };
  std::vector<double> products(taken * taken);
  for (std::size_t i = 0; i < taken; ++i)
    for (std::size_t j = i; j < taken; ++j) products[i * taken + j] = products[j * taken + i] = dot(row(i), row(j));
  std::vector<double> spectrum = eigenvalues(std::move(products), static_cast<int>(taken));
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

double energy_of(std::span<const float> values) {
  double energy = 0;
  for (const float value : values) energy += static_cast<double>(value) * static_cast<double>(value);
  return energy;
}

double energy_of_difference(std::span<const float> a, std::span<const float> b) {
  double energy = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    energy += difference * difference;
  }
  return energy;
}

std::optional<double> ratio(double part, double whole) {
  if (!(whole > 0)) return std::nullopt;
  return part / whole;
}

}  // namespace thinwire::tool
