// Transform coding of coefficients: rounded to steps that all workers share, in fields of words that add up in all-reduce.
//
// `group` neighbouring slices share a norm: the largest, over the workers, of the root of the mean of (coefficient /
// deviation)^2, and no less than makes every coefficient lie within twice its range; of a fine code more, up to where nothing is
// clipped, where clipping would lose more than rounding with longer steps. A component's step is norm x its
// deviation x its step in units of that, and a level is the nearest whole number of steps, clipped to the range, so that the
// workers' sum fits its field. Norms are agreed before (max), so that sums of levels are exact, and the same bits on every
// worker. Without the condition of twice the range a coefficient that is beyond its range in every step would pile up in the residual.
//
// Bits of N slices: ceil(N / group) x 32 x (words of a group + 1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/fields.h"
#include "kernels/matrix.h"

namespace thinwire {

// Where fields lie in a group's words: `group` fields of each component's width, none of which crosses a word's end.
class FieldPlan {
 public:
  struct Place {
    std::size_t word = 0;
    int shift = 0;
    int width = 0;
  };

  FieldPlan() = default;
  // Widths of 1 to 32 bits, in descending order, so that they leave little room.
  FieldPlan(std::span<const int> widths, std::size_t group);

  std::size_t words() const { return words_; }
  const Place& place(std::size_t component, std::size_t member) const { return places_[component * group_ + member]; }
  // All fields of one word.
  std::span<const Place> places_in(std::size_t word) const;

 private:
  std::size_t group_ = 1;
  std::size_t words_ = 0;
  std::vector<Place> places_;   // of each component's members
  std::vector<Place> by_word_;
  std::vector<std::size_t> begins_;  // of each word's in by_word_
};

class TransformCode {
 public:
  // As allocate_bits() gives them.
  TransformCode(std::vector<int> widths, std::vector<float> steps, std::size_t group);

  // Slices of `elements` entries in all that share norm and words: so many that they have at least kGroupEntries of them.
  static std::size_t group_of(std::size_t slices, std::size_t elements);
  static constexpr std::size_t kGroupEntries = 512;

  const std::vector<int>& widths() const { return widths_; }
  const std::vector<float>& steps() const { return steps_; }
  std::size_t norms(std::size_t slices) const { return (slices + group_ - 1) / group_; }
  std::size_t words(std::size_t slices) const { return plan_.words() * norms(slices); }

  // Of how many components, the first ones, fields hold a level of so many workers.
  std::size_t components_with_levels(int world_size) const;

  // Coefficients have a row for each component, a column for each slice. NaN where one of them is not finite.
  void measure(const kernels::ConstMatrix& coefficients, std::span<const float> deviations, int world_size, std::span<float> norms) const;
  // Writes this worker's words. With `decode` coefficients become what their levels stand for.
  void encode(const kernels::Matrix& coefficients, std::span<const float> deviations, std::span<const float> norms, int world_size,
              bool decode, std::span<std::int32_t> words) const;
  // What the sum of all workers' words stands for.
  void decode(std::span<const std::int32_t> words, std::span<const float> deviations, std::span<const float> norms, int world_size,
              const kernels::Matrix& coefficients) const;

 private:
  float range(std::size_t component, int world_size) const;  // in units of norm times deviation
  double rounding_loss(std::span<const float> deviations) const;
  double best_norm(const kernels::ConstMatrix& coefficients, std::span<const float> deviations, int world_size, double least,
                   double largest) const;
  std::uint32_t biases(std::size_t word, int world_size) const;
  template <class Body>
  void for_each_tile(std::span<const float> norms, std::size_t slices, const Body& body) const;
  template <class Body>
  void for_each_field(std::size_t component, std::size_t first, std::size_t count, std::size_t all_norms, int world_size,
                      const Body& body) const;

  std::vector<int> widths_;
  std::vector<float> steps_;
  std::size_t group_ = 1;
  FieldPlan plan_;
};

}  // namespace thinwire
