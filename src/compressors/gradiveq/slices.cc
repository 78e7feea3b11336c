#include "compressors/gradiveq/slices.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "core/divide.h"
#include "kernels/linear_algebra.h"

namespace thinwire {
namespace {

constexpr std::size_t kBlockEntries = 65536;

// copy(k, run, r) for every entry k + r of `present`, in runs. The lengths that most kernels give are known to the compiler.
template <class Copy>
void copy_runs(std::size_t length, std::size_t present, const Copy& copy) {
  const auto loop = [&](auto known) {
    for (std::size_t k = 0, run = 0; k < present; k += known, ++run)
      for (std::size_t r = 0; r < known; ++r) copy(k, run, r);
  };
  if (length == 1) return loop(std::integral_constant<std::size_t, 1>{});
  if (length == 3) return loop(std::integral_constant<std::size_t, 3>{});
  loop(length);
}

// How many of a kernel's places a slice of a square matrix has: the last dimensions' with which (in x places) + (out x the
// others), which a matrix of rank 1 has as numbers, are fewest; the more of equals.
std::size_t places_of_square(std::span<const std::size_t> kernel_shape, std::size_t out, std::size_t in, std::size_t kernel) {
  const auto numbers = [&](std::size_t places) { return in * places + out * (kernel / places); };
  std::size_t best = 1, places = 1;
  for (std::size_t i = kernel_shape.size(); i-- > 0;) {
    places *= kernel_shape[i];
    if (numbers(places) <= numbers(best)) best = places;
  }
  return best;
}

}  // namespace

Slices::Slices(const Parameter& parameter, Axis axis, std::size_t longest) {
  const auto elements = static_cast<std::size_t>(parameter.elements());
  const auto size = [&](std::size_t i) { return std::max<std::size_t>(static_cast<std::size_t>(parameter.shape[i]), 1); };
  if (parameter.shape.size() < 2 || elements == 0) axis = Axis::kFlat;
  const std::size_t out = axis == Axis::kFlat ? 1 : size(0), in = axis == Axis::kFlat ? 1 : size(1);
  const std::size_t row = std::max<std::size_t>(elements, 1) / out, kernel = row / in;
  std::size_t grain = 1;  // slices of filters are whole kernels
  switch (axis) {
    case Axis::kFilter:
      length_ = row;
      if (kernel <= longest) grain = kernel;
      break;
    case Axis::kFlat:
      length_ = std::min(std::max<std::size_t>(elements, 1), longest);
      break;
    case Axis::kOut:
      length_ = std::min(out, longest);
      stride_ = row;
      break;
    case Axis::kIn:
      length_ = in;
      stride_ = kernel;
      break;
    case Axis::kKernel:
      length_ = kernel;
      break;
    case Axis::kSquare: {
      std::vector<std::size_t> kernel_shape;
      for (std::size_t i = 2; i < parameter.shape.size(); ++i) kernel_shape.push_back(size(i));
      const std::size_t places = places_of_square(kernel_shape, out, in, kernel);
      run_ = grain = places <= longest ? places : 1;
      length_ = in * run_;
      stride_ = kernel;
      break;
    }
  }
  parts_ = divided_up(length_ / grain, std::max<std::size_t>(longest / grain, 1));
  entries_ = divided_up(length_ / grain, parts_) * grain;
  channel_ = std::max(line(), row);
}

std::size_t Slices::count(std::size_t elements) const { return divided_up(elements, line()) * parts_ * columns(); }

std::size_t Slices::block_slices() const { return std::max<std::size_t>(kBlockEntries / entries_, 1); }

// copy(row of the block, of values: the first entry, how many of them, in runs that lie stride_ apart)
template <class Values, class Copy>
void Slices::for_each_row(std::span<Values> values, std::size_t first, std::size_t count, const Copy& copy) const {
  const std::size_t slices_of_line = parts_ * columns();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t slice = (first + i) % slices_of_line;
    const std::size_t begin = (first + i) / slices_of_line * line();
    const std::size_t length = std::min(line(), values.size() - begin) / columns();  // the last line may be shorter
    const std::size_t from = std::min(slice / columns() * entries_, length);
    copy(i, begin + from / run_ * stride_ + slice % columns() * run_, std::min(entries_, length - from));
  }
}

void Slices::gather(std::span<const float> values, std::size_t first, std::size_t count, float* rows) const {
  for_each_row(values, first, count, [&](std::size_t i, std::size_t begin, std::size_t present) {
    float* const row = rows + i * entries_;
    copy_runs(run_, present, [&](std::size_t k, std::size_t run, std::size_t r) { row[k + r] = values[begin + run * stride_ + r]; });
    std::fill(row + present, row + entries_, 0.0f);
  });
}

void Slices::scatter(const float* rows, std::size_t first, std::size_t count, std::span<float> values) const {
  for_each_row(values, first, count, [&](std::size_t i, std::size_t begin, std::size_t present) {
    const float* const row = rows + i * entries_;
    copy_runs(run_, present, [&](std::size_t k, std::size_t run, std::size_t r) { values[begin + run * stride_ + r] = row[k + r]; });
  });
}

// body(rows, first slice), for all slices: where they lie as rows in memory, in one block.
template <class Body>
void Slices::for_each_block(std::span<const float> values, std::span<float> room, const Body& body) const {
  const std::size_t slices = count(values.size());
  if (is_contiguous(values.size())) return body(kernels::ConstMatrix{values.data(), slices, entries_, entries_}, std::size_t{0});
  for (std::size_t first = 0; first < slices; first += block_slices()) {
    const std::size_t some = std::min(block_slices(), slices - first);
    gather(values, first, some, room.data());
    body(kernels::ConstMatrix{room.data(), some, entries_, entries_}, first);
  }
}

void Slices::project(std::span<const float> values, const kernels::PackedMatrix& a, const kernels::Matrix& y,
                     std::span<float> room) const {
  for_each_block(values, room, [&](const kernels::ConstMatrix& rows, std::size_t first) {
    kernels::add_product(1, rows, a, kernels::Matrix{y.data + first, y.rows, rows.rows, y.stride}.transpose());
  });
}

void Slices::reconstruct(float alpha, const kernels::PackedMatrix& a, const kernels::ConstMatrix& y, std::span<const float> mean,
                         std::span<float> values, std::span<float> room) const {
  const std::size_t slices = count(values.size());
  const bool in_place = is_contiguous(values.size());
  const std::size_t step = in_place ? slices : block_slices();
  for (std::size_t first = 0; first < slices; first += step) {
    const std::size_t some = std::min(step, slices - first);
    const kernels::Matrix rows{in_place ? values.data() : room.data(), some, entries_, entries_};
    const kernels::ConstMatrix part{y.data + first, y.rows, some, y.stride};
    kernels::set_product(alpha, part.transpose(), a, mean, rows);
    if (!in_place) scatter(rows.data, first, some, values);
  }
}

void Slices::add_moments(std::span<const float> values, const kernels::Matrix& gram, std::span<double> sum,
                         std::span<float> room) const {
  for_each_block(values, room, [&](const kernels::ConstMatrix& rows, std::size_t) {
    kernels::add_gram(rows, gram);
    for (std::size_t i = 0; i < rows.rows; ++i)
      for (std::size_t k = 0; k < entries_; ++k) sum[k] += static_cast<double>(rows.data[i * entries_ + k]);
  });
}

}  // namespace thinwire
