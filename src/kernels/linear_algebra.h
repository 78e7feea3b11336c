// Gram matrices and eigenvectors, by OpenBLAS in the thread that calls. Products are in products.h.
//
// Results have the same bits where the same OpenBLAS uses the same kernels, and only there: blas_version() says which they are.
#pragma once

#include <span>
#include <string>

#include "kernels/matrix.h"
#include "kernels/matrix_room.h"

namespace thinwire::kernels {

// The upper triangle of `gram` <- gram + x' x, as x is read.
void add_gram(const ConstMatrix& x, const Matrix& gram);

// Of a symmetric matrix, of which the upper triangle is read: eigenvalues in descending order, and in the matrix's place the
// eigenvectors, one in each row. Returns false, with nothing of use, if they were not found.
bool find_eigenvectors(const Matrix& symmetric, std::span<float> eigenvalues);
// The same in memory of the caller's: eigenvector_room() bytes, for so many rows.
bool find_eigenvectors(const Matrix& symmetric, std::span<float> eigenvalues, MatrixRoom room);
std::size_t eigenvector_room(std::size_t rows);

// What OpenBLAS says of itself, its version and the kernels that it uses here among it: "OpenBLAS 0.3.21 ... SkylakeX MAX_THREADS=64".
std::string blas_version();

}  // namespace thinwire::kernels
