#include "compressors/principal_components.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace thinwire {

Moments::Moments(const Parameter& parameter, Axis axis, std::size_t longest)
    : axis_(axis),
      slices_(parameter, axis, longest),
      elements_(parameter.elements()),
      sum_(slices_.entries()),
      gram_(slices_.entries() * slices_.entries()) {}

void Moments::add(std::span<const float> gradient) {
  const std::size_t k = slices_.entries();
  std::vector<float> room(slices_.room_for());
  slices_.add_moments(gradient, {gram_.data(), k, k, k}, sum_, room);
  count_ += static_cast<double>(slices_.count(gradient.size()));
}

std::size_t Moments::dims(std::span<const float> variances, const BasisSize& size, bool competes) const {
  const std::size_t k = slices_.entries();
  if (size.dims > 0) return std::min(size.dims, k);
  if (size.energy > 0) {
    const double wanted = size.energy * std::accumulate(variances.begin(), variances.end(), 0.0);
    double held = 0;
    std::size_t dims = 0;
    while (dims < k && held < wanted) held += static_cast<double>(variances[dims++]);
    return dims;
  }
  double dims = std::round(static_cast<double>(k) / size.ratio);
  if (competes)
    dims = std::floor(size.uses * static_cast<double>(elements_) / size.ratio /
                      (size.uses * static_cast<double>(slices_.count(elements_)) + static_cast<double>(k)));
  return std::clamp<std::size_t>(static_cast<std::size_t>(dims), 1, k);
}

std::optional<Moments::Found> Moments::find(const BasisSize& size, bool competes) const {
  const std::size_t k = slices_.entries();
  if (count_ < 1) return std::nullopt;
  std::vector<float> mean(k), covariance = gram_, variances(k);
  for (std::size_t i = 0; i < k; ++i) mean[i] = static_cast<float>(sum_[i] / count_);
  for (std::size_t i = 0; i < k; ++i)
    for (std::size_t j = i; j < k; ++j)
      covariance[i * k + j] = static_cast<float>(static_cast<double>(covariance[i * k + j]) / count_ -
                                                 static_cast<double>(mean[i]) * static_cast<double>(mean[j]));
  const auto finite = [](float value) { return std::isfinite(value); };
  if (!std::all_of(covariance.begin(), covariance.end(), finite)) return std::nullopt;
  if (!kernels::find_eigenvectors({covariance.data(), k, k, k}, variances)) return std::nullopt;
  for (float& variance : variances) variance = std::max(variance, 0.0f);
  const double total = std::accumulate(variances.begin(), variances.end(), 0.0);
  if (!(total > 0) || !std::all_of(covariance.begin(), covariance.end(), finite)) return std::nullopt;

  Found found;
  Basis& basis = found.basis;
  basis.axis = axis_;
  basis.slices = slices_;
  basis.dims = dims(variances, size, competes);
  const double slices = static_cast<double>(slices_.count(elements_)), d = static_cast<double>(basis.dims);
  if (size.uses * slices * d + static_cast<double>(k) * (d + 1) >= size.uses * static_cast<double>(elements_)) return std::nullopt;
  found.kept = std::accumulate(variances.begin(), variances.begin() + static_cast<std::ptrdiff_t>(basis.dims), 0.0) / total;
  basis.components.assign(covariance.begin(), covariance.begin() + static_cast<std::ptrdiff_t>(basis.dims * k));
  basis.mean = std::move(mean);
  for (std::size_t i = 0; i < basis.dims; ++i) basis.deviations.push_back(std::sqrt(variances[i]));
  return found;
}

std::size_t Moments::saved_bytes() const { return sizeof count_ + sum_.size() * sizeof(double) + gram_.size() * sizeof(float); }

void Moments::save(ByteWriter& writer) const {
  writer.write(count_);
  writer.write_all(std::span<const double>(sum_));
  writer.write_all(std::span<const float>(gram_));
}

void Moments::load(ByteReader& reader) {
  count_ = reader.read<double>();
  reader.read_into(std::span(sum_));
  reader.read_into(std::span(gram_));
  if (!(count_ >= 0) || !std::isfinite(count_)) throw PayloadError("a saved state of gradiveq holds an impossible count of slices");
}

std::vector<Axis> axes_for(const Parameter& parameter, std::optional<Axis> axis) {
  if (parameter.shape.size() < 2) return {Axis::kFlat};
  if (axis) return {*axis};
  if (parameter.shape.size() == 2) return {Axis::kFilter};
  return {Axis::kFilter, Axis::kIn, Axis::kKernel};
}

std::optional<Basis> best_basis(std::span<const Moments> moments, const BasisSize& size) {
  std::optional<Moments::Found> best;
  for (const Moments& way : moments) {
    std::optional<Moments::Found> found = way.find(size, moments.size() > 1);
    if (found && (!best || found->kept > best->kept)) best = std::move(found);
  }
  if (!best) return std::nullopt;
  return std::move(best->basis);
}

}  // namespace thinwire
