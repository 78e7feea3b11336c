// How a parameter is cut into slices of K entries, which principal components are found of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/matrix.h"
#include "kernels/products.h"
#include "thinwire/layout.h"

namespace thinwire {

// Along what the entries of a slice lie, for weights of shape (out, in, kernel...): a whole filter, neighbours in memory
// whatever they belong to, output channels, input channels, a kernel's places, or (square) input channels and some of the
// kernel's last dimensions: those with which slices are as many as their entries, or nearest to it. Of a 3x3 kernel out x 3
// slices have in x 3 entries.
enum class Axis : std::uint8_t { kFilter, kFlat, kOut, kIn, kKernel, kSquare };
inline constexpr int kAxes = 6;

// A parameter lies in lines of `length` entries in each of some columns, and a column is cut into `parts` slices of K entries. A
// column's entries lie in runs of `run` neighbours, `stride` apart. What is missing at the end of a column, where K does not
// divide it, counts as zeros. A parameter of one dimension is flat.
class Slices {
 public:
  Slices() = default;
  // Slices have `longest` entries at most.
  Slices(const Parameter& parameter, Axis axis, std::size_t longest);

  std::size_t entries() const { return entries_; }             // K
  std::size_t line() const { return length_ * columns(); }    // entries of a line, which ranges below begin with
  std::size_t count(std::size_t elements) const;               // slices of so many entries of the parameter
  // Entries of one output channel, or of as many as lines go through; its slices are neighbours.
  std::size_t channel() const { return channel_; }

  // Copies slices first .. first + count - 1 of `values` to the rows of `rows`, or back.
  void gather(std::span<const float> values, std::size_t first, std::size_t count, float* rows) const;
  void scatter(const float* rows, std::size_t first, std::size_t count, std::span<float> values) const;

  // y (d x count(values.size())) <- y + a' x, with a (K x d) and the slices of `values` as x's columns. `room` holds
  // room_for() floats.
  void project(std::span<const float> values, const kernels::PackedMatrix& a, const kernels::Matrix& y, std::span<float> room) const;
  // Slices of `values` <- alpha a' y + mean, in each of them, with a (d x K). `values` is overwritten.
  void reconstruct(float alpha, const kernels::PackedMatrix& a, const kernels::ConstMatrix& y, std::span<const float> mean,
                   std::span<float> values, std::span<float> room) const;
  // The upper triangle of `gram` <- gram + x x', `sum` <- sum + the sum of all slices.
  void add_moments(std::span<const float> values, const kernels::Matrix& gram, std::span<double> sum, std::span<float> room) const;

  std::size_t room_for() const { return block_slices() * entries_; }

 private:
  // Slices that are copied at a time stay in a core's own cache.
  std::size_t block_slices() const;
  std::size_t columns() const { return stride_ / run_; }
  bool is_contiguous(std::size_t elements) const { return columns() == 1 && parts_ * entries_ == length_ && elements % length_ == 0; }
  template <class Values, class Copy>
  void for_each_row(std::span<Values> values, std::size_t first, std::size_t count, const Copy& copy) const;
  template <class Body>
  void for_each_block(std::span<const float> values, std::span<float> room, const Body& body) const;

  std::size_t length_ = 1;
  std::size_t stride_ = 1;
  std::size_t run_ = 1;
  std::size_t parts_ = 1;
  std::size_t entries_ = 1;
  std::size_t channel_ = 1;
};

}  // namespace thinwire
