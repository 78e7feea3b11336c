#include "kernels/products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/products.cc"
#include "hwy/foreach_target.h"  // must come before the next two
#include "hwy/highway.h"
#include "kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

static_assert(PackedMatrix::kGroup == kLanes);

// Rows of a that are taken at a time.
constexpr std::size_t kRows = 8;
// Terms that are summed up before c takes them: so long a piece of a panel, and of the rows below, stay in a core's own cache.
constexpr std::size_t kTerms = 1024;
// Rows that meet one panel before the next: few, which go through memory in its order, unless b is too long to come again for
// each few of them.
constexpr std::size_t kManyRows = 64;
constexpr std::size_t kShortMatrix = 65536;

#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr std::size_t kSums = 24;  // vectors of sums, in 32 registers
#else
constexpr std::size_t kSums = 12;  // in 16
#endif

// Rows whose sums of G groups of columns stay in registers.
template <std::size_t G>
constexpr std::size_t kRowsOf = std::clamp<std::size_t>(kSums / (G * kVectors<float>), 1, kRows);

template <class D, class V = hn::Vec<D>>
HWY_INLINE V fused([[maybe_unused]] D tag, V a, V b, V c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#else
  float x[hn::MaxLanes(D())], y[hn::MaxLanes(D())], z[hn::MaxLanes(D())];
  hn::StoreU(a, tag, x);
  hn::StoreU(b, tag, y);
  hn::StoreU(c, tag, z);
  for (std::size_t i = 0; i < hn::MaxLanes(tag); ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::LoadU(tag, z);
#endif
}

// body(0), body(1), ... with numbers known to the compiler, which then keeps arrays in registers.
template <std::size_t kCount, class Body>
HWY_INLINE void unrolled(const Body& body) {
  [&]<std::size_t... kIndices>(std::index_sequence<kIndices...>) HWY_ATTR {
    (body(std::integral_constant<std::size_t, kIndices>()), ...);
  }(std::make_index_sequence<kCount>());
}

// sums[r][j], kPanel apart <- the sum over l of a(r, l) panel(l, j), for R rows and G groups of columns; a(r, l) is
// a[r * row + l * term]. These are arguments of their own, which stay in registers: a structure would be written to memory
// behind all the results that wait to be.
template <std::size_t R, std::size_t G>
HWY_INLINE void sum_terms(const float* a, std::size_t row, std::size_t term, const float* panel, std::size_t terms, float* sums) {
  constexpr std::size_t kWide = G * kVectors<float>;
  std::array<std::array<Vector<float>, kWide>, R> kept;
  unrolled<R>([&](auto r) HWY_ATTR { unrolled<kWide>([&](auto v) HWY_ATTR { kept[r][v] = hn::Zero(Tag<float>()); }); });
  for (std::size_t l = 0; l < terms; ++l, a += term, panel += G * kLanes) {
    std::array<Vector<float>, kWide> b;
    unrolled<kWide>([&](auto v) HWY_ATTR { b[v] = load(panel, v); });
    unrolled<R>([&](auto r) HWY_ATTR {
      const auto factor = hn::Set(Tag<float>(), a[r * row]);
      unrolled<kWide>([&](auto v) HWY_ATTR { kept[r][v] = fused(Tag<float>(), factor, b[v], kept[r][v]); });
    });
  }
  unrolled<R>([&](auto r) HWY_ATTR {
    unrolled<kWide>([&](auto v) HWY_ATTR { store(kept[r][v], sums + r * PackedMatrix::kPanel, v); });
  });
}

template <std::size_t R, std::size_t G>
void sum_rows(const float* a, std::size_t row, std::size_t term, std::size_t rows, const float* panel, std::size_t terms, float* sums) {
  for (; rows >= R; rows -= R, a += R * row, sums += R * PackedMatrix::kPanel) sum_terms<R, G>(a, row, term, panel, terms, sums);
  if constexpr (R > 1) sum_rows<R / 2, G>(a, row, term, rows, panel, terms, sums);
}

// What becomes of sums: base + alpha sum, in c's rows; base is c itself if it is null.
HWY_INLINE void put_rows(float alpha, const float* sums, std::size_t rows, std::size_t columns, const float* base, float* c,
                         std::size_t stride) {
  const auto factor = hn::Set(Tag<float>(), alpha);
  for (std::size_t r = 0; r < rows; ++r, sums += PackedMatrix::kPanel, c += stride) {
    const float* const from = base != nullptr ? base : c;
    std::size_t j = 0;
    for (; j + kLanes <= columns; j += kLanes)
      for (std::size_t v = 0; v < kVectors<float>; ++v) store(fused(Tag<float>(), factor, load(sums + j, v), load(from + j, v)), c + j, v);
    for (; j < columns; ++j) c[j] = std::fma(alpha, sums[j], from[j]);
  }
}

// c's columns, `stride` apart, + alpha sums: all the rows at once, so that each cache line of c is met once. Strides are often
// powers of two, with which lines of many columns have the same few places in a cache.
HWY_INLINE void put_columns(float alpha, const float* sums, std::size_t rows, std::size_t columns, float* c, std::size_t stride) {
  constexpr std::size_t kSome = 4;
  HWY_ALIGN float turned[kLanes * kManyRows];  // [column of a group][row], four rows of a column at a time
  const std::size_t whole = rows / kSome * kSome;
  const auto factor = hn::Set(Tag<float>(), alpha);
  for (std::size_t j = 0; j < columns; j += kLanes) {
    for (std::size_t r = 0; r < whole; r += kSome) {
      HWY_ALIGN float four[kSome * kLanes];
      for (std::size_t v = 0; v < kVectors<float>; ++v) {
        const auto row = [&](std::size_t i) HWY_ATTR { return load(sums + (r + i) * PackedMatrix::kPanel + j, v); };
        hn::StoreInterleaved4(row(0), row(1), row(2), row(3), Tag<float>(), four + v * kSome * kWidth<float>);
      }
      for (std::size_t i = 0; i < kLanes; ++i) std::memcpy(turned + i * kManyRows + r, four + i * kSome, kSome * sizeof(float));
    }
    for (std::size_t i = 0; i < std::min(kLanes, columns - j); ++i) {
      float* const column = c + (j + i) * stride;
      std::size_t r = 0;
      for (; r + kLanes <= whole; r += kLanes)
        for (std::size_t v = 0; v < kVectors<float>; ++v)
          store(fused(Tag<float>(), factor, load(turned + i * kManyRows + r, v), load(column + r, v)), column + r, v);
      for (; r < rows; ++r) column[r] = std::fma(alpha, sums[r * PackedMatrix::kPanel + j + i], column[r]);
    }
  }
}

// `base`: what is added to every row of c, or to every panel of it if `base_step` is 0 and not 1; null for c itself.
void multiply(float alpha, const ConstMatrix& a, const PackedMatrix& b, const float* base, std::size_t base_step, const Matrix& c) {
  const std::size_t rows = a.read_rows();
  const std::size_t row = a.transposed ? 1 : a.stride, term = a.transposed ? a.stride : 1;
  const std::size_t rows_at_once = !c.transposed && b.rows() * b.columns() <= kShortMatrix ? kRows : kManyRows;
  HWY_ALIGN float sums[kManyRows * PackedMatrix::kPanel];
  std::size_t l = 0;
  do {
    const std::size_t terms = std::min(kTerms, b.rows() - l);
    for (std::size_t begin = 0; begin < rows; begin += rows_at_once)
      for (std::size_t j = 0; j < b.columns(); j += PackedMatrix::kPanel) {
        const std::size_t width = b.width(j), columns = std::min(width, b.columns() - j);
        const float* const panel = b.panel(j) + l * width;
        const std::size_t end = std::min(rows, begin + rows_at_once);
        for (std::size_t i = begin; i < end; i += kRows) {
          const std::size_t some = std::min(kRows, end - i);
          const float* const left = a.data + i * row + l * term;
          float* const tile = sums + (c.transposed ? i - begin : 0) * PackedMatrix::kPanel;
          if (width == 3 * kLanes) sum_rows<kRowsOf<3>, 3>(left, row, term, some, panel, terms, tile);
          else if (width == 2 * kLanes) sum_rows<kRowsOf<2>, 2>(left, row, term, some, panel, terms, tile);
          else sum_rows<kRowsOf<1>, 1>(left, row, term, some, panel, terms, tile);
          if (!c.transposed)
            put_rows(alpha, tile, some, columns, l == 0 && base != nullptr ? base + base_step * j : nullptr, c.data + i * c.stride + j, c.stride);
        }
        if (c.transposed) put_columns(alpha, sums, end - begin, columns, c.data + j * c.stride + begin, c.stride);
      }
    l += terms;
  } while (l < b.rows());
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {
HWY_EXPORT(multiply);

namespace {

void check(const ConstMatrix& a, const PackedMatrix& b, const Matrix& c) {
  if (a.read_columns() != b.rows() || a.read_rows() != c.read_rows() || b.columns() != c.read_columns())
    throw std::logic_error("thinwire: matrices whose shapes do not fit were multiplied");
}

std::size_t whole_groups(std::size_t columns) { return (columns + PackedMatrix::kGroup - 1) / PackedMatrix::kGroup * PackedMatrix::kGroup; }

}  // namespace

PackedMatrix::PackedMatrix(const ConstMatrix& matrix, const ConstMatrix& below) : PackedMatrix(matrix, below, nullptr) {}

PackedMatrix::PackedMatrix(const ConstMatrix& matrix, MatrixRoom& room, const ConstMatrix& below) : PackedMatrix(matrix, below, &room) {}

std::size_t PackedMatrix::room_for(std::size_t rows, std::size_t columns) { return MatrixRoom::bytes_for<float>(rows * whole_groups(columns)); }

PackedMatrix::PackedMatrix(const ConstMatrix& matrix, const ConstMatrix& below, MatrixRoom* room)
    : rows_(matrix.read_rows() + below.read_rows()), columns_(matrix.read_columns()) {
  if (below.read_rows() > 0 && below.read_columns() != columns_)
    throw std::logic_error("thinwire: matrices of unequal width were packed together");
  const std::size_t floats = rows_ * whole_groups(columns_);
  if (!room) own_.resize(floats);
  float* const data = room ? room->take<float>(floats).data() : own_.data();
  if (room) lent_ = data;
  pack(matrix, 0, rows_, data);
  pack(below, matrix.read_rows(), rows_, data);
}

// Rows from `first` on, of `all_rows`.
void PackedMatrix::pack(const ConstMatrix& matrix, std::size_t first, std::size_t all_rows, float* data) {
  constexpr std::size_t kBlock = 64;  // rows whose part of a panel stays in the nearest cache while columns come one by one
  const std::size_t rows = matrix.read_rows(), columns = matrix.read_columns();
  if (rows == 0) return;
  for (std::size_t column = 0; column < columns; column += kPanel) {
    const std::size_t wide = std::min(kPanel, whole_groups(columns - column)), present = std::min(wide, columns - column);
    float* const panel = data + column * all_rows + first * wide;
    for (std::size_t begin = 0; begin < rows; begin += kBlock) {
      const std::size_t end = std::min(rows, begin + kBlock);
      if (matrix.transposed) {
        for (std::size_t j = 0; j < present; ++j) {
          const float* const from = matrix.data + (column + j) * matrix.stride;
          for (std::size_t r = begin; r < end; ++r) panel[r * wide + j] = from[r];
        }
      } else {
        for (std::size_t r = begin; r < end; ++r) std::copy_n(matrix.data + r * matrix.stride + column, present, panel + r * wide);
      }
      for (std::size_t r = begin; r < end; ++r) std::fill_n(panel + r * wide + present, wide - present, 0.0f);
    }
  }
}

std::size_t PackedMatrix::width(std::size_t column) const { return std::min(kPanel, whole_groups(columns_ - column)); }

void add_product(float alpha, const ConstMatrix& a, const PackedMatrix& b, const Matrix& c) {
  check(a, b, c);
  HWY_DYNAMIC_DISPATCH(multiply)(alpha, a, b, nullptr, 0, c);
}

void set_product(float alpha, const ConstMatrix& a, const PackedMatrix& b, std::span<const float> row, const Matrix& c) {
  check(a, b, c);
  if (c.transposed || (!row.empty() && row.size() != c.columns))
    throw std::logic_error("thinwire: what a product is to be added to does not fit");
  alignas(64) static constexpr float kZeros[PackedMatrix::kPanel] = {};
  HWY_DYNAMIC_DISPATCH(multiply)(alpha, a, b, row.empty() ? kZeros : row.data(), row.empty() ? 0 : 1, c);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
