// How a parameter is cut into slices of K entries, which principal components are found of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/linear_algebra.h"
#include "thinwire/layout.h"

namespace thinwire {

// Along what the entries of a slice lie, for weights of shape (out, in, kernel...): a whole filter, neighbours in memory
// whatever they belong to, output channels, input channels, or a kernel's places.
enum class Axis : std::uint8_t { kFilter, kFlat, kOut, kIn, kKernel };
inline constexpr int kAxes = 5;

// A parameter lies in lines of `length` x `stride` entries, of which each of the `stride` columns is cut into `parts` slices
// of K entries. What is missing at the end of a column, where K does not divide it, counts as zeros. A parameter of one
// dimension is flat.
class Slices {
 public:
  Slices() = default;
  // Slices have `longest` entries at most.
  Slices(const Parameter& parameter, Axis axis, std::size_t longest);

  std::size_t entries() const { return entries_; }             // K
  std::size_t line() const { return length_ * stride_; }       // entries of a line, which ranges below begin with
  std::size_t count(std::size_t elements) const;               // slices of so many entries of the parameter

  // y (d x count(values.size())) <- a x + beta y, with a (d x K) and the slices of `values` as x's columns. `room` holds
  // room_for() floats.
  void project(std::span<const float> values, const kernels::ConstMatrix& a, float beta, const kernels::Matrix& y,
               std::span<float> room) const;
  // Slices of `values` <- alpha a' y + mean, in each of them. `values` is overwritten.
  void reconstruct(float alpha, const kernels::ConstMatrix& a, const kernels::ConstMatrix& y, std::span<const float> mean,
                   std::span<float> values, std::span<float> room) const;
  // z (rows x K) <- p times the slices of `values` as rows.
  void combine(std::span<const float> values, const kernels::ConstMatrix& p, const kernels::Matrix& z, std::span<float> room) const;
  // The upper triangle of `gram` <- gram + x x', `sum` <- sum + the sum of all slices.
  void add_moments(std::span<const float> values, const kernels::Matrix& gram, std::span<double> sum, std::span<float> room) const;

  std::size_t room_for() const { return block_slices() * entries_; }

 private:
  // Slices that are copied at a time stay in a core's own cache.
  std::size_t block_slices() const;
  bool is_contiguous(std::size_t elements) const { return stride_ == 1 && parts_ * entries_ == length_ && elements % length_ == 0; }
  // Copies slices first .. first + count - 1 of `values` to the rows of `rows`, or back.
  void gather(std::span<const float> values, std::size_t first, std::size_t count, float* rows) const;
  void scatter(const float* rows, std::size_t first, std::size_t count, std::span<float> values) const;
  template <class Values, class Copy>
  void for_each_row(std::span<Values> values, std::size_t first, std::size_t count, const Copy& copy) const;
  template <class Body>
  void for_each_block(std::span<const float> values, std::span<float> room, const Body& body) const;

  std::size_t length_ = 1;
  std::size_t stride_ = 1;
  std::size_t parts_ = 1;
  std::size_t entries_ = 1;
};

}  // namespace thinwire
