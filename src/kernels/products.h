// Products of matrices, of which the right-hand one is packed beforehand: a basis for all the gradients that are projected on
// it. The other is read where it lies.
//
// Every element of a product is the same sum in the same order, of fused multiply-adds, on every processor and in every part of
// a matrix: workers with different processors have the same bits, however they cut their work.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/aligned.h"
#include "kernels/matrix.h"
#include "kernels/matrix_room.h"

namespace thinwire::kernels {

// A matrix as the right-hand side of products: its columns in panels, each with its rows one behind the other.
class PackedMatrix {
 public:
  static constexpr std::size_t kPanel = 48;  // columns of a panel
  static constexpr std::size_t kGroup = 16;  // the last panel's columns are a multiple of this; those that are too many are zeros

  PackedMatrix() = default;
  // `below`: rows that come after the matrix's. Throws std::logic_error if they are not as long.
  explicit PackedMatrix(const ConstMatrix& matrix, const ConstMatrix& below = {});
  // The same in memory of the caller's, which outlives it.
  PackedMatrix(const ConstMatrix& matrix, MatrixRoom& room, const ConstMatrix& below = {});
  static std::size_t room_for(std::size_t rows, std::size_t columns);  // in bytes

  std::size_t rows() const { return rows_; }
  std::size_t columns() const { return columns_; }

  // The columns from `column` on, a multiple of kPanel: width() of each row, one row behind the other.
  const float* panel(std::size_t column) const { return data() + column * rows_; }
  std::size_t width(std::size_t column) const;

 private:
  PackedMatrix(const ConstMatrix& matrix, const ConstMatrix& below, MatrixRoom* room);
  const float* data() const { return lent_ ? lent_ : own_.data(); }
  static void pack(const ConstMatrix& matrix, std::size_t first, std::size_t all_rows, float* data);

  std::size_t rows_ = 0;
  std::size_t columns_ = 0;
  AlignedFloats own_;
  const float* lent_ = nullptr;  // in its place
};

// c <- c + alpha a b. c may be transposed. Throws std::logic_error if the shapes do not fit, as does the next one.
void add_product(float alpha, const ConstMatrix& a, const PackedMatrix& b, const Matrix& c);

// Each row of c <- alpha times that of a b, plus `row`, or plus nothing if that is empty.
void set_product(float alpha, const ConstMatrix& a, const PackedMatrix& b, std::span<const float> row, const Matrix& c);

}  // namespace thinwire::kernels
