// Matrices that lie in somebody else's memory.
#pragma once

#include <cstddef>
#include <type_traits>

namespace thinwire::kernels {

// Row by row, `stride` elements from one row to the next. `transposed`: read as its transpose, of columns x rows.
template <class T>
struct MatrixView {
  T* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t stride = 0;
  bool transposed = false;

  operator MatrixView<const T>() const  // NOLINT(google-explicit-constructor): as a pointer becomes one to const
    requires(!std::is_const_v<T>)
  {
    return {data, rows, columns, stride, transposed};
  }
  MatrixView transpose() const { return {data, rows, columns, stride, !transposed}; }
  std::size_t read_rows() const { return transposed ? columns : rows; }
  std::size_t read_columns() const { return transposed ? rows : columns; }
};
using Matrix = MatrixView<float>;            // not transposed
using ConstMatrix = MatrixView<const float>;

}  // namespace thinwire::kernels
