#include "compressors/gradiveq/principal_components.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/linear_algebra.h"

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

// What components get of `rate` bits an entry, of which each group's norm takes 32 a group.
std::optional<BitAllocation> Moments::bits(std::span<const float> variances, const BasisSize& size, bool competes) const {
  const std::size_t slices = slices_.count(elements_), group = TransformCode::group_of(slices, elements_);
  // Variances that are no more than what single precision makes of zero would rule the norms.
  constexpr float kRounding = 1e-6f;
  const auto first_noise = std::ranges::find_if(variances, [&](float variance) { return variance <= kRounding * variances.front(); });
  variances = variances.first(static_cast<std::size_t>(first_noise - variances.begin()));
  const auto allocate = [&](double rate) {
    const double words = rate * static_cast<double>(group * elements_) / static_cast<double>(slices) / 32 - 1;
    return allocate_bits(variances, group, static_cast<std::size_t>(std::max(words, 0.0)), size.world_size);
  };
  BitAllocation allocation = allocate(size.rate);
  if (competes) {
    const auto floats = static_cast<double>(slices_.entries() * (allocation.widths.size() + 1));
    allocation = allocate(size.rate - 32 * floats / size.uses / static_cast<double>(elements_));
  }
  if (allocation.widths.empty()) return std::nullopt;
  return allocation;
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
  const std::size_t slices = slices_.count(elements_);
  double floats = 0;  // that a step sends
  if (size.rate > 0) {
    std::optional<BitAllocation> allocation = bits(variances, size, competes);
    if (!allocation) return std::nullopt;
    basis.dims = allocation->widths.size();
    found.kept = 1 - allocation->error / total;
    basis.code.emplace(std::move(allocation->widths), std::move(allocation->steps), TransformCode::group_of(slices, elements_));
    floats = static_cast<double>(basis.code->words(slices) + basis.code->norms(slices));
  } else {
    basis.dims = dims(variances, size, competes);
    found.kept = std::accumulate(variances.begin(), variances.begin() + static_cast<std::ptrdiff_t>(basis.dims), 0.0) / total;
    floats = size.sent * static_cast<double>(slices * basis.dims);
  }
  if (size.uses * floats + static_cast<double>(k * (basis.dims + 1)) >= size.uses * static_cast<double>(elements_))
    return std::nullopt;
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
