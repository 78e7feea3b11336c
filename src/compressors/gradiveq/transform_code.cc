#include "compressors/gradiveq/transform_code.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "compressors/gradiveq/bit_allocation.h"
#include "core/divide.h"

namespace thinwire {
namespace {

constexpr std::size_t kTile = 2 * TransformCode::kGroupEntries;  // slices that are coded at a time
constexpr int kWordBits = 32;

// Beneath the least normal number its reciprocal would be infinite.
float normal(float positive) { return std::max(positive, std::numeric_limits<float>::min()); }

// The norm of a root that may be beyond a float's range, or no number.
float norm_of(double root) {
  constexpr double kLargest = 0.999 * static_cast<double>(std::numeric_limits<float>::max());
  if (!std::isfinite(root)) return std::numeric_limits<float>::quiet_NaN();
  return root > 0 ? normal(static_cast<float>(std::min(root, kLargest))) : 0.0f;
}

}  // namespace

FieldPlan::FieldPlan(std::span<const int> widths, std::size_t group) : group_(group), places_(widths.size() * group) {
  // Each field goes to the word with the least room that is enough for it.
  std::array<std::vector<std::size_t>, kWordBits + 1> words_with_room;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const int width = widths[i / group];
    int room = width;
    while (room <= kWordBits && words_with_room[static_cast<std::size_t>(room)].empty()) ++room;
    std::size_t word = words_;
    if (room > kWordBits) {
      room = kWordBits;
      ++words_;
    } else {
      word = words_with_room[static_cast<std::size_t>(room)].back();
      words_with_room[static_cast<std::size_t>(room)].pop_back();
    }
    places_[i] = {word, kWordBits - room, width};
    words_with_room[static_cast<std::size_t>(room - width)].push_back(word);
  }
  by_word_ = places_;
  std::ranges::stable_sort(by_word_, {}, &Place::word);
  begins_.resize(words_ + 1);
  for (const Place& place : by_word_) ++begins_[place.word + 1];
  for (std::size_t word = 0; word < words_; ++word) begins_[word + 1] += begins_[word];
}

std::span<const FieldPlan::Place> FieldPlan::places_in(std::size_t word) const {
  return std::span(by_word_).subspan(begins_[word], begins_[word + 1] - begins_[word]);
}

TransformCode::TransformCode(std::vector<int> widths, std::vector<float> steps, std::size_t group)
    : widths_(std::move(widths)), steps_(std::move(steps)), group_(group), plan_(widths_, group) {}

std::size_t TransformCode::group_of(std::size_t slices, std::size_t elements) {
  return std::clamp<std::size_t>(divided_up(kGroupEntries * slices, std::max<std::size_t>(elements, 1)), 1, kGroupEntries);
}

std::size_t TransformCode::components_with_levels(int world_size) const {
  const auto has_none = [=](int width) { return levels_of(width, world_size) == 0; };
  return static_cast<std::size_t>(std::ranges::find_if(widths_, has_none) - widths_.begin());
}

float TransformCode::range(std::size_t component, int world_size) const {
  return (static_cast<float>(levels_of(widths_[component], world_size)) + 0.5f) * steps_[component];
}

void TransformCode::measure(const kernels::ConstMatrix& coefficients, std::span<const float> deviations, int world_size,
                            std::span<float> norms) const {
  // Short codes clip as much as is best already, and to look for better norms takes longer than all else.
  constexpr double kFine = 1e-3;
  const bool is_fine = rounding_loss(deviations) < kFine;
  std::array<double, kTile> sums, largest;
  for (std::size_t first = 0; first < norms.size(); first += kTile) {
    const auto tile = norms.subspan(first, std::min(kTile, norms.size() - first));
    std::fill_n(sums.begin(), tile.size(), 0.0);
    std::fill_n(largest.begin(), tile.size(), 0.0);
    const std::size_t begin = first * group_, end = std::min((first + tile.size()) * group_, coefficients.columns);
    for (std::size_t c = 0; c < coefficients.rows; ++c) {
      const double inverse = 1 / static_cast<double>(normal(deviations[c])), inverse_range = 1 / static_cast<double>(range(c, world_size));
      const float* const row = coefficients.data + c * coefficients.stride;
      for (std::size_t j = begin; j < end; ++j) {
        const double ratio = static_cast<double>(row[j]) * inverse;
        const std::size_t n = (j - begin) / group_;
        sums[n] += ratio * ratio;
        largest[n] = std::max(largest[n], std::abs(ratio) * inverse_range);
      }
    }
    for (std::size_t n = 0; n < tile.size(); ++n) {
      const std::size_t from = begin + n * group_, members = std::min(group_, end - from);
      const double mean = std::sqrt(sums[n] / static_cast<double>(members * coefficients.rows));
      const double least = mean < largest[n] / 2 ? largest[n] / 2 : mean;  // no number stays none
      const kernels::ConstMatrix group{coefficients.data + from, coefficients.rows, members, coefficients.stride};
      tile[n] = norm_of(is_fine && least < largest[n] ? best_norm(group, deviations, world_size, least, largest[n]) : least);
    }
  }
}

// With a norm of one, of the components' variance.
double TransformCode::rounding_loss(std::span<const float> deviations) const {
  double lost = 0, all = 0;
  for (std::size_t c = 0; c < steps_.size(); ++c) {
    const double variance = static_cast<double>(deviations[c]) * static_cast<double>(deviations[c]);
    lost += static_cast<double>(steps_[c]) * static_cast<double>(steps_[c]) / 12 * variance;
    all += variance;
  }
  return lost / all;
}

// Between the least norm that is allowed and the one with which nothing is clipped: what all workers lose by rounding grows with
// the norm, what this one loses by clipping shrinks.
double TransformCode::best_norm(const kernels::ConstMatrix& coefficients, std::span<const float> deviations, int world_size, double least,
                                double largest) const {
  constexpr std::size_t kNorms = 5;
  std::array<double, kNorms> norms, clipped{};
  for (std::size_t k = 0; k < kNorms; ++k)
    norms[k] = least * std::pow(largest / least, static_cast<double>(k) / static_cast<double>(kNorms - 1));
  double rounded = 0;  // with a norm of one
  for (std::size_t c = 0; c < coefficients.rows; ++c) {
    const double step = static_cast<double>(steps_[c]) * static_cast<double>(deviations[c]);
    const double reach = static_cast<double>(range(c, world_size)) * static_cast<double>(deviations[c]);
    rounded += step * step / 12 * static_cast<double>(world_size) * static_cast<double>(coefficients.columns);
    for (std::size_t j = 0; j < coefficients.columns; ++j) {
      const double size = std::abs(static_cast<double>(coefficients.data[c * coefficients.stride + j]));
      for (std::size_t k = 0; k < kNorms && size > norms[k] * reach; ++k) {
        const double beyond = size - norms[k] * reach;
        clipped[k] += beyond * beyond;
      }
    }
  }
  const auto loss = [&](std::size_t k) { return norms[k] * norms[k] * rounded + clipped[k]; };
  std::size_t best = 0;
  for (std::size_t k = 1; k < kNorms; ++k)
    if (loss(k) < loss(best)) best = k;
  return norms[best];
}

// body(first slice, norm of each slice of the tile), for whole groups at a time.
template <class Body>
void TransformCode::for_each_tile(std::span<const float> norms, std::size_t slices, const Body& body) const {
  std::array<float, kTile> norm_of_slice;
  const std::size_t step = kTile / group_ * group_;
  for (std::size_t first = 0; first < slices; first += step) {
    const auto tile = std::span(norm_of_slice).first(std::min(step, slices - first));
    for (std::size_t j = 0; j < tile.size(); ++j) {
      const float norm = norms[(first + j) / group_];
      tile[j] = norm >= 0 && std::isfinite(norm) ? norm : std::numeric_limits<float>::quiet_NaN();
    }
    body(first, std::span<const float>(tile));
  }
}

// body(field, word, its first word, member, how many groups), for a component's fields of `count` slices from `first` on.
template <class Body>
void TransformCode::for_each_field(std::size_t component, std::size_t first, std::size_t count, std::size_t all_norms, int world_size,
                                   const Body& body) const {
  for (std::size_t member = 0; member < std::min(group_, count); ++member) {
    const FieldPlan::Place& place = plan_.place(component, member);
    const kernels::Field field{place.shift, place.width, world_size * levels_of(place.width, world_size)};
    body(field, place.word, place.word * all_norms + first / group_, member, (count - member + group_ - 1) / group_);
  }
}

void TransformCode::encode(const kernels::Matrix& coefficients, std::span<const float> deviations, std::span<const float> norms,
                           int world_size, bool decode, std::span<std::int32_t> words) const {
  std::ranges::fill(words, 0);
  std::array<float, kTile> inverses;
  std::array<std::int32_t, kTile> levels, member_levels;
  for_each_tile(norms, coefficients.columns, [&](std::size_t first, std::span<const float> tile) {
    for (std::size_t j = 0; j < tile.size(); ++j) inverses[j] = tile[j] > 0 ? 1 / normal(tile[j]) : 0.0f;
    for (std::size_t c = 0; c < widths_.size(); ++c) {
      const auto row = std::span(coefficients.data + c * coefficients.stride + first, tile.size());
      const float step = normal(steps_[c] * deviations[c]);
      const auto of_row = std::span(levels).first(tile.size());
      kernels::round_to_levels(row, 1 / step, inverses, levels_of(widths_[c], world_size), of_row);
      for_each_field(c, first, tile.size(), norms.size(), world_size,
                     [&](const kernels::Field& field, std::size_t, std::size_t begin, std::size_t member, std::size_t count) {
                       for (std::size_t n = 0; n < count; ++n) member_levels[n] = of_row[n * group_ + member];
                       kernels::add_field(std::span(member_levels).first(count), field, words.subspan(begin, count));
                     });
      if (decode) kernels::scale_levels(of_row, step, tile, row);
    }
  });
}

std::uint32_t TransformCode::biases(std::size_t word, int world_size) const {
  std::uint32_t sum = 0;
  for (const FieldPlan::Place& place : plan_.places_in(word))
    sum += kernels::Field{place.shift, place.width, world_size * levels_of(place.width, world_size)}.bias();
  return sum;
}

void TransformCode::decode(std::span<const std::int32_t> words, std::span<const float> deviations, std::span<const float> norms,
                           int world_size, const kernels::Matrix& coefficients) const {
  std::array<std::int32_t, kTile> levels, member_levels;
  for_each_tile(norms, coefficients.columns, [&](std::size_t first, std::span<const float> tile) {
    for (std::size_t c = 0; c < widths_.size(); ++c) {
      for_each_field(c, first, tile.size(), norms.size(), world_size,
                     [&](const kernels::Field& field, std::size_t word, std::size_t begin, std::size_t member, std::size_t count) {
                       kernels::take_field(words.subspan(begin, count), field, biases(word, world_size), std::span(member_levels).first(count));
                       for (std::size_t n = 0; n < count; ++n) levels[n * group_ + member] = member_levels[n];
                     });
      kernels::scale_levels(std::span<const std::int32_t>(levels).first(tile.size()), normal(steps_[c] * deviations[c]), tile,
                            std::span(coefficients.data + c * coefficients.stride + first, tile.size()));
    }
  });
}

}  // namespace thinwire
