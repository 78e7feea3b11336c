#include "compressors/sparsifiers/cosines.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "kernels/products.h"

namespace thinwire::cosines {
namespace {

using kernels::ConstMatrix, kernels::Matrix, kernels::PackedMatrix;

// Rows are entries, columns coefficients.
struct Basis {
  Basis() {
    for (std::size_t i = 0; i < kRun; ++i)
      for (std::size_t c = 0; c < kRun; ++c) {
        const double angle = std::numbers::pi / static_cast<double>(kRun) * (static_cast<double>(i) + 0.5) * static_cast<double>(c);
        values[i * kRun + c] = static_cast<float>(std::sqrt((c == 0 ? 1.0 : 2.0) / static_cast<double>(kRun)) * std::cos(angle));
      }
    const ConstMatrix matrix{values.data(), kRun, kRun, kRun};
    forward = PackedMatrix(matrix);
    back = PackedMatrix(matrix.transpose());
  }
  std::array<float, kRun * kRun> values{};
  PackedMatrix forward, back;
};

const Basis& basis() {
  static const Basis instance;
  return instance;
}

void multiply(std::span<const float> from, const PackedMatrix& matrix, std::span<float> to) {
  const std::size_t runs = from.size() / kRun;
  if (runs > 0) kernels::set_product(1, ConstMatrix{from.data(), runs, kRun, kRun}, matrix, {}, Matrix{to.data(), runs, kRun, kRun});
  std::ranges::copy(from.subspan(runs * kRun), to.subspan(runs * kRun).begin());
}

}  // namespace

void transform(std::span<const float> from, std::span<float> to) { multiply(from, basis().forward, to); }
void transform_back(std::span<const float> from, std::span<float> to) { multiply(from, basis().back, to); }

}  // namespace thinwire::cosines
