#include "compressors/gradiveq/principal_components.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/divide.h"
#include "kernels/linear_algebra.h"
#include "kernels/statistics.h"

namespace thinwire {
namespace {

constexpr std::size_t kNeighbours = 128;  // that a stage looks at together
// Of the mean energy: what blocks of less take next to nothing, at about a bit an entry.
constexpr double kLeastEnergy = 0.05;

double mean_of(std::span<const double> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(std::max<std::size_t>(numbers.size(), 1));
}

// To a factor, the bits of entries of energy outer[i] inner[j] in blocks that have so many neighbours of `inner` together.
double code_length(std::span<const double> outer, std::span<const double> inner, std::size_t together) {
  const double least = kLeastEnergy * mean_of(outer) * mean_of(inner);
  double length = 0;
  for (std::size_t first = 0; first < inner.size(); first += together) {
    const auto block = inner.subspan(first, std::min(together, inner.size() - first));
    const double energy = mean_of(block) / least;
    for (const double factor : outer) length += static_cast<double>(block.size()) * std::log1p(factor * energy);
  }
  return length;
}

}  // namespace

Moments::Moments(const Parameter& parameter, Axis axis, std::size_t longest)
    : axis_(axis),
      slices_(parameter, axis, longest),
      elements_(parameter.elements()),
      sum_(slices_.entries()),
      gram_(slices_.entries() * slices_.entries()),
      channels_(divided_up(static_cast<std::size_t>(elements_), slices_.channel())) {}

void Moments::add(std::span<const float> gradient) {
  const std::size_t k = slices_.entries();
  std::vector<float> room(slices_.room_for());
  slices_.add_moments(gradient, {gram_.data(), k, k, k}, sum_, room);
  count_ += static_cast<double>(slices_.count(gradient.size()));
  for (std::size_t channel = 0; channel < channels_.size(); ++channel) {
    const std::size_t begin = channel * slices_.channel();
    channels_[channel] += kernels::squared_norm(gradient.subspan(begin, std::min(slices_.channel(), gradient.size() - begin)));
  }
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

// Whether blocks of neighbouring coefficients are more alike in magnitude if these go channel by channel, each component by component, than the other
// way round: by what a coder takes that knows the energy of each block, where a coefficient's is its component's times its channel's.
bool Moments::is_shorter_by_channel(std::span<const float> variances) const {
  const std::vector<double> components(variances.begin(), variances.end());
  const std::size_t together = std::max<std::size_t>(kNeighbours / slices_.count(slices_.channel()), 1);
  return code_length(channels_, components, together) < code_length(components, channels_, together);
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
  basis.by_channel = size.is_ordered && is_shorter_by_channel(std::span(variances).first(basis.dims));
  return found;
}

std::size_t Moments::saved_bytes() const { return sizeof count_ + (sum_.size() + channels_.size()) * sizeof(double) + gram_.size() * sizeof(float); }

void Moments::save(ByteWriter& writer) const {
  writer.write(count_);
  writer.write_all(std::span<const double>(sum_));
  writer.write_all(std::span<const float>(gram_));
  writer.write_all(std::span<const double>(channels_));
}

void Moments::load(ByteReader& reader) {
  count_ = reader.read<double>();
  reader.read_into(std::span(sum_));
  reader.read_into(std::span(gram_));
  reader.read_into(std::span(channels_));
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
