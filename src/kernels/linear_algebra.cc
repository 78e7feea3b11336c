#include "kernels/linear_algebra.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <vector>

#include <cblas.h>

#include "kernels/aligned.h"

// LAPACK, as Fortran sees it; OpenBLAS contains it.
extern "C" void ssyevd_(const char* job, const char* triangle, const int* n, float* matrix, const int* stride, float* values,
                        float* work, const int* work_size, int* whole_work, const int* whole_work_size, int* info);

namespace thinwire::kernels {
namespace {

// Workers' cores are busy with other lanes, and bits must not depend on the number of threads. OpenBLAS 0.3.21 built without
// threads was seen to give two callers the same buffer, so that callers of such a one take turns.
class OneThread {
 public:
  OneThread() : turn_(mutex(), std::defer_lock) {
    static const bool shared = (openblas_set_num_threads(1), openblas_get_parallel() != 0);
    if (!shared) turn_.lock();
  }

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  std::unique_lock<std::mutex> turn_;
};

// What ssyevd asks for.
struct WorkSizes {
  int floats = 0;
  int whole = 0;
};
WorkSizes work_sizes(std::size_t rows) {
  const OneThread one_thread;
  const int n = static_cast<int>(rows), ask = -1;
  int info = 0, whole = 0;
  float floats = 0, nothing = 0;
  ssyevd_("V", "L", &n, &nothing, &n, &nothing, &floats, &ask, &whole, &ask, &info);
  return {static_cast<int>(floats) + 1, whole};
}

}  // namespace

void add_gram(const ConstMatrix& x, const Matrix& gram) {
  if (gram.rows != x.read_columns() || gram.columns != x.read_columns())
    throw std::logic_error("thinwire: a matrix does not fit its products");
  if (x.rows == 0 || x.columns == 0) return;
  const OneThread one_thread;
  cblas_ssyrk(CblasRowMajor, CblasUpper, x.transposed ? CblasNoTrans : CblasTrans, static_cast<int>(x.read_columns()),
              static_cast<int>(x.read_rows()), 1.0f, x.data, static_cast<int>(x.stride), 1.0f, gram.data, static_cast<int>(gram.stride));
}

bool find_eigenvectors(const Matrix& symmetric, std::span<float> eigenvalues) {
  std::vector<std::byte, AlignedAllocator<std::byte>> memory(eigenvector_room(symmetric.rows));
  return find_eigenvectors(symmetric, eigenvalues, MatrixRoom(memory));
}

std::size_t eigenvector_room(std::size_t rows) {
  const WorkSizes sizes = work_sizes(rows);
  return MatrixRoom::bytes_for<float>(rows * rows) + MatrixRoom::bytes_for<float>(rows) +
         MatrixRoom::bytes_for<float>(static_cast<std::size_t>(sizes.floats)) + MatrixRoom::bytes_for<int>(static_cast<std::size_t>(sizes.whole));
}

bool find_eigenvectors(const Matrix& symmetric, std::span<float> eigenvalues, MatrixRoom room) {
  const std::size_t rows = symmetric.rows;
  const WorkSizes sizes = work_sizes(rows);
  const OneThread one_thread;
  // Aligned: OpenBLAS's products of matrices with vectors, which LAPACK uses, round differently elsewhere.
  const auto matrix = room.take<float>(rows * rows), values = room.take<float>(rows);
  for (std::size_t i = 0; i < rows; ++i) std::copy_n(symmetric.data + i * symmetric.stride, rows, matrix.data() + i * rows);
  // To Fortran the upper triangle by rows is the lower one, and eigenvectors are columns, that is, rows here.
  const int n = static_cast<int>(rows);
  const auto work = room.take<float>(static_cast<std::size_t>(sizes.floats));
  const auto whole_work = room.take<int>(static_cast<std::size_t>(sizes.whole));
  int info = 0;
  ssyevd_("V", "L", &n, matrix.data(), &n, values.data(), work.data(), &sizes.floats, whole_work.data(), &sizes.whole, &info);
  if (info != 0) return false;
  std::reverse_copy(values.data(), values.data() + rows, eigenvalues.begin());
  for (std::size_t i = 0; i < rows; ++i) std::copy_n(matrix.data() + (rows - 1 - i) * rows, rows, symmetric.data + i * symmetric.stride);
  return true;
}

std::string blas_version() {
  // " OpenBLAS 0.3.21 ... SkylakeX MAX_THREADS=64". Asked once, as OpenBLAS writes the answer into memory that all threads share.
  static const std::string config = openblas_get_config();
  return config.substr(std::min(config.find_first_not_of(' '), config.size()));
}

}  // namespace thinwire::kernels
