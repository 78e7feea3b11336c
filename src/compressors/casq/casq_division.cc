#include "compressors/casq/casq_division.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/codes.h"

namespace thinwire {
namespace {

constexpr std::size_t kBlock = CasqChunk::kBlockElements;

float mean_magnitude(const kernels::Magnitudes& magnitudes, std::size_t elements) {
  return elements == 0 ? 0 : magnitudes.sum_abs / static_cast<float>(elements);
}

std::span<const float> block_of(std::span<const float> values, std::size_t block) {
  return values.subspan(block * kBlock, std::min(kBlock, values.size() - block * kBlock));
}

}  // namespace

InFloatRange::InFloatRange(std::span<float> values, const kernels::Magnitudes& magnitudes)
    : values_(values), magnitudes_(magnitudes) {
  constexpr float kSmallest = 1e-18f, kLargest = 1e15f;
  if (magnitudes.largest == 0 || (magnitudes.largest >= kSmallest && magnitudes.largest <= kLargest)) return;
  exponent_ = std::clamp(std::ilogb(magnitudes.largest), -126, 126);
  kernels::multiply(values_, std::ldexp(1.0f, -exponent_));
  magnitudes_ = kernels::measure(values_);
}

void InFloatRange::undo(std::span<float> values) const {
  if (exponent_ != 0) kernels::multiply(values, std::ldexp(1.0f, exponent_));
}

CasqDivision::CasqDivision(const CasqChunk& chunk, std::span<const float> values, const InFloatRange& range,
                           const CasqChunk::Parts<std::byte>& parts)
    : chunk_(chunk), values_(values), codes_(parts.codes), unit_(mean_magnitude(range.magnitudes(), values.size())) {
  const auto sum = static_cast<double>(range.magnitudes().sum_abs);
  energy_of_signs_ = values.empty() ? 0 : sum * sum / static_cast<double>(values.size());
  if (chunk.blocks() > 0) measure_blocks(range.exponent(), parts.scales);
}

// Scales are used as they will be read. A block too small for its values to be divided by its scale is all zeros.
void CasqDivision::measure_blocks(int exponent, std::span<std::byte> scales) {
  constexpr float kSmallest = 1e-30f;
  double magnitudes = 0, squares = 0;
  for (std::size_t b = 0; b < chunk_.blocks(); ++b) {
    const auto block = block_of(values_, b);
    const kernels::Magnitudes measured = kernels::measure(block);
    const float mean = mean_magnitude(measured, block.size());
    std::uint16_t rounded = mean < kSmallest ? std::uint16_t{0} : CasqChunk::rounded_scale(std::ldexp(mean, exponent));
    scales_[b] = std::ldexp(CasqChunk::scale_of(rounded), -exponent);
    if (scales_[b] < kSmallest) scales_[b] = 0, rounded = 0;
    std::memcpy(scales.data() + b * sizeof rounded, &rounded, sizeof rounded);
    const auto scale = static_cast<double>(scales_[b]);
    magnitudes += scale * static_cast<double>(measured.sum_abs);
    squares += scale * scale * static_cast<double>(block.size());
  }
  energy_of_signs_ = squares > 0 ? magnitudes * magnitudes / squares : 0;
  unit_ = 1;
}

bool CasqDivision::divide(std::span<const float> normalised) {
  chunk_.blocks() > 0 ? divide_blocks(normalised) : divide_chunk(normalised);
  return kept_energy() >= 0.99 * energy_of_signs_;
}

void CasqDivision::divide_chunk(std::span<const float> normalised) {
  std::array<float, CasqChunk::kMostClusters> room;
  const auto thresholds = std::span(room).first(normalised.size());
  std::transform(normalised.begin(), normalised.end(), thresholds.begin(), [this](float t) { return t * unit_; });
  const kernels::ClusterSums sums = kernels::assign(values_, thresholds, chunk_.bits(), codes_);
  for (std::size_t c = 0; c < chunk_.clusters(); ++c) {
    totals_.sums[c] = static_cast<double>(sums.sum[c]);
    totals_.weights[c] = sums.count[c];
  }
}

void CasqDivision::divide_blocks(std::span<const float> normalised) {
  std::fill_n(totals_.sums.begin(), chunk_.clusters(), 0.0);
  std::fill_n(totals_.weights.begin(), chunk_.clusters(), 0.0);
  std::array<float, kBlock> room;
  for (std::size_t b = 0; b < chunk_.blocks(); ++b) {
    const auto block = block_of(values_, b);
    const auto values = std::span(room).first(block.size());
    std::ranges::copy(block, values.begin());
    kernels::multiply(values, scales_[b] > 0 ? 1 / scales_[b] : 0.0f);
    const auto codes = codes_.subspan(kernels::packed_bytes(b * kBlock, chunk_.bits()),
                                      kernels::packed_bytes(block.size(), chunk_.bits()));
    const kernels::ClusterSums sums = kernels::assign(values, normalised, chunk_.bits(), codes);
    const double square = static_cast<double>(scales_[b]) * static_cast<double>(scales_[b]);
    for (std::size_t c = 0; c < chunk_.clusters(); ++c) {
      totals_.sums[c] += square * static_cast<double>(sums.sum[c]);
      totals_.weights[c] += square * sums.count[c];
    }
  }
}

double CasqDivision::kept_energy() const {
  double energy = 0;
  for (std::size_t c = 0; c < chunk_.clusters(); ++c) energy += totals_.sums[c] * totals_.centre(c);
  return energy;
}

void CasqDivision::follow(Signs signs, std::span<float> thresholds) const {
  for (std::size_t i = 0; i < thresholds.size(); ++i) {
    const bool fixed = signs == Signs::kApart && thresholds[i] == 0;
    if (fixed || !(totals_.weights[i] > 0) || !(totals_.weights[i + 1] > 0)) continue;
    thresholds[i] = 0.5f * (static_cast<float>(totals_.centre(i)) + static_cast<float>(totals_.centre(i + 1))) / unit_;
  }
}

}  // namespace thinwire
