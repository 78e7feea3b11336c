// Products and eigenvectors of matrices, by OpenBLAS in the thread that calls.
//
// Products have the same bits on processors for which OpenBLAS has the same kernels, and only there: blas_kernels() says
// which they are.
#pragma once

#include <cstddef>
#include <span>
#include <string>
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

// c <- alpha a b + beta c. Throws std::logic_error if the shapes do not fit.
void multiply_matrices(float alpha, const ConstMatrix& a, const ConstMatrix& b, float beta, const Matrix& c);

// The upper triangle of `gram` (columns x columns) <- gram + x' x.
void add_gram(const ConstMatrix& x, const Matrix& gram);

// Of a symmetric matrix, of which the upper triangle is read: eigenvalues in descending order, and in the matrix's place the
// eigenvectors, one in each row. Returns false, with nothing of use, if they were not found.
bool find_eigenvectors(const Matrix& symmetric, std::span<float> eigenvalues);

// Which of its kernels OpenBLAS uses here, e.g. "SkylakeX".
std::string blas_kernels();

}  // namespace thinwire::kernels
