#include "compressors/gradiveq/followed_basis.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/bytes.h"
#include "kernels/aligned.h"
#include "kernels/linear_algebra.h"
#include "kernels/products.h"
#include "kernels/statistics.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr double kForgetting = 0.95;
constexpr std::uint8_t kVersion = 1;
constexpr const char* kSaved = "a saved state of gradiveq with refresh=every";

struct Header {
  std::uint32_t dims;
  std::uint32_t probes;
  std::uint32_t entries;
};

// Numbers in (-1, 1), the same on every worker. Not kernels::mix(): with these began every training that docs/gradiveq.md tells of.
float scattered(std::size_t i) {
  std::uint64_t bits = (i + 1) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 31)) * 0xbf58476d1ce4e5b9u;
  return static_cast<float>(static_cast<std::int32_t>(bits >> 32)) * 0x1p-31f;
}

// In several sums, which the compiler can add to at once.
double dot(std::span<const float> a, std::span<const float> b) {
  constexpr std::size_t kLanes = 16;
  double sums[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
  for (; i < a.size(); ++i) sums[i % kLanes] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return std::accumulate(std::begin(sums), std::end(sums), 0.0);
}

// A row that is no longer than this becomes 0.
void scale_to_one(std::span<float> row, double shortest) {
  double length = std::sqrt(dot(row, row));
  if (length <= shortest) length = 0;
  for (float& value : row) value = length == 0 ? 0.0f : static_cast<float>(static_cast<double>(value) / length);
}

std::span<float> row(const kernels::Matrix& matrix, std::size_t i) { return {matrix.data + i * matrix.stride, matrix.columns}; }

// Rows <- what of them is orthogonal to `taken`, which are orthonormal or 0.
void take_out(const kernels::ConstMatrix& taken, const kernels::Matrix& rows, kernels::MatrixRoom room) {
  if (taken.rows == 0 || rows.rows == 0) return;
  const kernels::Matrix shares{room.take<float>(rows.rows * taken.rows).data(), rows.rows, taken.rows, taken.rows};
  kernels::set_product(1, rows, kernels::PackedMatrix(taken.transpose(), room), {}, shares);
  kernels::add_product(-1, shares, kernels::PackedMatrix(taken, room), rows);
}

// One round of Gram-Schmidt. A half of the rows is made orthonormal and then taken out of the other, so that most of the work is
// in products of matrices.
void orthonormalize_once(const kernels::Matrix& rows, const kernels::MatrixRoom& room) {
  constexpr std::size_t kFew = 4;
  if (rows.rows > kFew) {
    const std::size_t half = rows.rows / 2;
    const kernels::Matrix upper{rows.data, half, rows.columns, rows.stride};
    const kernels::Matrix lower{rows.data + half * rows.stride, rows.rows - half, rows.columns, rows.stride};
    orthonormalize_once(upper, room);
    take_out(upper, lower, room);
    return orthonormalize_once(lower, room);
  }
  for (std::size_t i = 0; i < rows.rows; ++i) {
    const auto own = row(rows, i);
    for (std::size_t j = 0; j < i; ++j) {
      const auto other = row(rows, j);
      const double share = dot(own, other);
      for (std::size_t k = 0; k < own.size(); ++k)
        own[k] = static_cast<float>(static_cast<double>(own[k]) - share * static_cast<double>(other[k]));
    }
    scale_to_one(own, 1e-5);
  }
}

}  // namespace

// Twice: one round leaves what rounding made of a row that nearly was in the span.
void orthonormalize(const kernels::Matrix& rows, std::size_t done, kernels::MatrixRoom room) {
  const kernels::ConstMatrix taken{rows.data, done, rows.columns, rows.stride};
  const kernels::Matrix rest{rows.data + done * rows.stride, rows.rows - done, rows.columns, rows.stride};
  for (std::size_t i = 0; i < rest.rows; ++i) scale_to_one(row(rest, i), 0);
  for (int round = 0; round < 2; ++round) {
    take_out(taken, rest, room);
    orthonormalize_once(rest, room);
  }
}

std::size_t orthonormalize_room(std::size_t rows, std::size_t done, std::size_t columns) {
  const std::size_t taken = std::max(done, rows / 2);
  return kernels::MatrixRoom::bytes_for<float>(rows * taken) + kernels::PackedMatrix::room_for(columns, taken) +
         kernels::PackedMatrix::room_for(taken, columns);
}

FollowedBasis::FollowedBasis(const Parameter& parameter, const FollowOptions& options)
    : parameter_(parameter), slices_(parameter, options.axis, options.slice) {
  const auto elements = static_cast<std::size_t>(parameter.elements());
  if (elements < std::max<std::uint64_t>(options.smallest, 1)) return;
  const std::size_t slices = slices_.count(elements), k = slices_.entries();
  const double numbers = static_cast<double>(elements) / options.ratio;
  const auto at_least_one = [](double number) { return static_cast<std::size_t>(std::max(number, 1.0)); };
  if (options.probes > 0) probes_ = options.probes;
  else if (options.dims > 0) probes_ = options.dims;
  else probes_ = at_least_one((numbers - static_cast<double>(slices)) / static_cast<double>(slices + k));
  probes_ = std::min({probes_, slices, k});
  const double left = numbers - static_cast<double>(probes_ * (slices + k));
  dims_ = options.dims > 0 ? options.dims : at_least_one(left / static_cast<double>(slices));
  if (dims_ + probes_ > k || (dims_ + probes_) * slices + probes_ * k >= elements) dims_ = 0;
}

void FollowedBasis::fill_probes(const kernels::Matrix& rows, kernels::MatrixRoom room) const {
  for (std::size_t i = dims_; i < rows.rows; ++i) {
    const auto own = row(rows, i);
    if (std::ranges::any_of(own, [](float value) { return value != 0; })) continue;
    for (std::size_t k = 0; k < own.size(); ++k) own[k] = scattered(i * own.size() + k);
    orthonormalize({rows.data, i + 1, rows.columns, rows.stride}, i, room);
  }
}

// Whether it can be used.
bool FollowedBasis::finish(State& state) const {
  constexpr float kLargestEntry = 1.01f;  // of rows of length one, to rounding
  const kernels::Scan entries = kernels::scan(state.rows);
  if (!entries.finite || entries.largest > kLargestEntry || !kernels::scan(state.deviations).finite) return false;
  const std::size_t k = slices_.entries();
  state.reach = 0;
  for (std::size_t entry = 0; entry < k; ++entry) {
    double sum = 0;
    for (std::size_t i = 0; i < dims_; ++i) sum += std::abs(static_cast<double>(state.rows[i * k + entry]));
    state.reach = std::max(state.reach, sum);
  }
  return true;
}

void FollowedBasis::commit_step() {
  if (!has_next_) return;
  std::swap(current_, next_);
  has_current_ = true;
  has_next_ = false;
}

void FollowedBasis::begin(std::span<const float> mean) {
  if (dims_ == 0 || has_current_) return;
  const kernels::Scan scan = kernels::scan(mean);
  if (!scan.finite || scan.largest == 0) return;
  const std::size_t slices = slices_.count(mean.size()), k = slices_.entries();
  std::vector<float> mixture(all_rows() * slices), matrix(slices * k);
  std::vector<std::byte, kernels::AlignedAllocator<std::byte>> room(follow_room(slices));
  for (std::size_t i = 0; i < mixture.size(); ++i) mixture[i] = scattered(i);
  for (State* const state : {&current_, &next_}) {
    state->rows.resize(all_rows() * k);
    state->deviations.assign(dims_, 0.0f);
  }
  const kernels::Matrix rows{next_.rows.data(), all_rows(), k, k};
  slices_.gather(mean, 0, slices, matrix.data());
  kernels::set_product(1, {mixture.data(), all_rows(), slices, slices}, kernels::PackedMatrix({matrix.data(), slices, k, k}), {}, rows);
  if (!kernels::scan(next_.rows).finite) return;
  orthonormalize(rows, 0, kernels::MatrixRoom(room));
  fill_probes(rows, kernels::MatrixRoom(room));
  has_next_ = finish(next_);
}

std::size_t FollowedBasis::follow_room(std::size_t slices) const {
  const std::size_t k = slices_.entries(), all = all_rows();
  const auto floats = [](std::size_t count) { return kernels::MatrixRoom::bytes_for<float>(count); };
  using Packed = kernels::PackedMatrix;
  return floats(all * k) + floats(all * slices) + floats(probes_ * probes_) + floats(all * all) + floats(all) +
         std::max({orthonormalize_room(probes_, dims_, k), orthonormalize_room(all, 0, k), orthonormalize_room(1, all, k),
                   Packed::room_for(k, probes_), Packed::room_for(probes_, slices), Packed::room_for(slices, all),
                   Packed::room_for(all, k), kernels::eigenvector_room(all)});
}

void FollowedBasis::follow(const kernels::ConstMatrix& coefficients, const kernels::ConstMatrix& z, kernels::MatrixRoom room) {
  const std::size_t k = slices_.entries(), n = coefficients.columns, all = all_rows();
  const auto packed_product = [](const kernels::ConstMatrix& a, const kernels::ConstMatrix& b, const kernels::Matrix& c, kernels::MatrixRoom rest) {
    kernels::set_product(1, a, kernels::PackedMatrix(b, rest), {}, c);
  };
  // The span's orthonormal rows: U, and those that Z is made of. Z = T rows.
  const kernels::Matrix rows{room.take<float>(all * k).data(), all, k, k};
  std::ranges::copy(current_.rows, rows.data);
  for (std::size_t i = 0; i < probes_; ++i) std::copy_n(z.data + i * z.stride, k, rows.data + (dims_ + i) * k);
  orthonormalize(rows, dims_, room);
  // What the mean is in that span: a row of coefficients for each row of it, in units of the largest.
  const auto within = room.take<float>(all * n);
  std::copy_n(coefficients.data, dims_ * n, within.begin());
  const kernels::Matrix turned{room.take<float>(probes_ * probes_).data(), probes_, probes_, probes_};
  packed_product({rows.data + dims_ * k, probes_, k, k}, z.transpose(), turned, room);
  const kernels::ConstMatrix p{coefficients.data + dims_ * coefficients.stride, probes_, n, coefficients.stride};
  packed_product(turned, p, {within.data() + dims_ * n, probes_, n, n}, room);
  float unit = kernels::measure(within).largest;
  for (const float deviation : current_.deviations) unit = std::max(unit, deviation);
  if (!kernels::scan(within).finite || !(unit > 0) || !std::isfinite(unit)) return;
  for (float& value : within) value /= unit;
  const auto moments = room.take<float>(all * all), variances = room.take<float>(all);
  const kernels::Matrix square{moments.data(), all, all, all};
  const kernels::ConstMatrix mean{within.data(), all, n, n};
  packed_product(mean, mean.transpose(), square, room);
  for (std::size_t i = 0; i < dims_; ++i) {
    const float deviation = current_.deviations[i] / unit;
    moments[i * all + i] += static_cast<float>(kForgetting) * deviation * deviation;
  }
  if (!kernels::find_eigenvectors(square, variances, room) || !kernels::scan(moments).finite) return;

  next_.rows.resize(all * k);
  next_.deviations.resize(dims_);
  const kernels::Matrix next{next_.rows.data(), all, k, k};
  packed_product(square, rows, next, room);
  orthonormalize(next, 0, room);
  fill_probes(next, room);
  for (std::size_t i = 0; i < dims_; ++i) next_.deviations[i] = std::sqrt(std::max(variances[i], 0.0f)) * unit;
  has_next_ = finish(next_);
}

std::vector<std::byte> FollowedBasis::save() const {
  std::vector<std::byte> saved(2 + (has_current_ ? sizeof(Header) + 4 * (current_.rows.size() + dims_) : 0));
  ByteWriter writer(saved);
  writer.write(kVersion);
  writer.write(static_cast<std::uint8_t>(has_current_ ? 1 : 0));
  if (!has_current_) return saved;
  writer.write(Header{static_cast<std::uint32_t>(dims_), static_cast<std::uint32_t>(probes_), static_cast<std::uint32_t>(slices_.entries())});
  writer.write_all(std::span<const float>(current_.rows));
  writer.write_all(std::span<const float>(current_.deviations));
  return saved;
}

void FollowedBasis::load(std::span<const std::byte> saved) {
  ByteReader reader(saved, kSaved);
  reader.expect_version(kVersion);
  const auto contents = reader.read<std::uint8_t>();
  if (contents > 1) throw PayloadError(std::string(kSaved) + " holds nothing known");
  State state;
  if (contents == 1) {
    const auto header = reader.read<Header>();
    if (dims_ == 0 || header.dims != dims_ || header.probes != probes_ || header.entries != slices_.entries())
      throw PayloadError(std::string(kSaved) + " holds " + std::to_string(header.dims) + " components for slices of " +
                         std::to_string(header.entries) + " entries; they are " + std::to_string(dims_) + " of " +
                         std::to_string(slices_.entries()) + " now. A parameter whose shape has changed begins anew");
    state.rows.resize(all_rows() * slices_.entries());
    state.deviations.resize(dims_);
    reader.read_into(std::span(state.rows));
    reader.read_into(std::span(state.deviations));
    if (!finish(state)) throw PayloadError(std::string(kSaved) + " holds a number that is not finite, or too large");
  }
  reader.expect_end();
  current_ = std::move(state);
  has_current_ = contents == 1;
  has_next_ = false;
}

}  // namespace thinwire
