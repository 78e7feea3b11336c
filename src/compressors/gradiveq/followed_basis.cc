#include "compressors/gradiveq/followed_basis.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/bytes.h"
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

// Numbers in (-1, 1), the same on every worker.
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
void take_out(const kernels::ConstMatrix& taken, const kernels::Matrix& rows, std::vector<float>& room) {
  if (taken.rows == 0 || rows.rows == 0) return;
  room.assign(rows.rows * taken.rows, 0);
  const kernels::Matrix shares{room.data(), rows.rows, taken.rows, taken.rows};
  kernels::add_product(1, rows, kernels::PackedMatrix(taken.transpose()), shares);
  kernels::add_product(-1, shares, kernels::PackedMatrix(taken), rows);
}

// One round of Gram-Schmidt. A half of the rows is made orthonormal and then taken out of the other, so that most of the work is
// in products of matrices.
void orthonormalize_once(const kernels::Matrix& rows, std::vector<float>& room) {
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
void orthonormalize(const kernels::Matrix& rows, std::size_t done) {
  const kernels::ConstMatrix taken{rows.data, done, rows.columns, rows.stride};
  const kernels::Matrix rest{rows.data + done * rows.stride, rows.rows - done, rows.columns, rows.stride};
  for (std::size_t i = 0; i < rest.rows; ++i) scale_to_one(row(rest, i), 0);
  std::vector<float> room;
  for (int round = 0; round < 2; ++round) {
    take_out(taken, rest, room);
    orthonormalize_once(rest, room);
  }
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

void FollowedBasis::fill_probes(const kernels::Matrix& rows) const {
  for (std::size_t i = dims_; i < rows.rows; ++i) {
    const auto own = row(rows, i);
    if (std::ranges::any_of(own, [](float value) { return value != 0; })) continue;
    for (std::size_t k = 0; k < own.size(); ++k) own[k] = scattered(i * own.size() + k);
    orthonormalize({rows.data, i + 1, rows.columns, rows.stride}, i);
  }
}

void FollowedBasis::begin(std::span<const float> mean) {
  if (dims_ == 0 || !kernels::scan(mean).finite) return;
  const std::size_t slices = slices_.count(mean.size()), k = slices_.entries();
  std::vector<float> mixture(all_rows() * slices), matrix(slices * k);
  for (std::size_t i = 0; i < mixture.size(); ++i) mixture[i] = scattered(i);
  auto state = std::make_shared<State>();
  state->rows.resize(all_rows() * k);
  state->deviations.resize(dims_);
  const kernels::Matrix rows{state->rows.data(), all_rows(), k, k};
  slices_.gather(mean, 0, slices, matrix.data());
  kernels::set_product(1, {mixture.data(), all_rows(), slices, slices}, kernels::PackedMatrix({matrix.data(), slices, k, k}), {}, rows);
  if (!kernels::scan(state->rows).finite) return;
  orthonormalize(rows);
  fill_probes(rows);
  working_ = std::move(state);
}

void FollowedBasis::follow(const kernels::ConstMatrix& coefficients, const kernels::ConstMatrix& z) {
  const std::size_t k = slices_.entries(), n = coefficients.columns, all = all_rows();
  // The span's orthonormal rows: U, and those that Z is made of. Z = T rows.
  std::vector<float> span(working_->rows.begin(), working_->rows.end());
  const kernels::Matrix rows{span.data(), all, k, k};
  for (std::size_t i = 0; i < probes_; ++i) std::copy_n(z.data + i * z.stride, k, rows.data + (dims_ + i) * k);
  orthonormalize(rows, dims_);
  // What the mean is in that span: a row of coefficients for each row of it, in units of the largest.
  std::vector<float> within(all * n);
  std::copy_n(coefficients.data, dims_ * n, within.begin());
  std::vector<float> turn(probes_ * probes_);
  const kernels::Matrix turned{turn.data(), probes_, probes_, probes_};
  kernels::set_product(1, {rows.data + dims_ * k, probes_, k, k}, kernels::PackedMatrix(z.transpose()), {}, turned);
  const kernels::ConstMatrix p{coefficients.data + dims_ * coefficients.stride, probes_, n, coefficients.stride};
  kernels::set_product(1, turned, kernels::PackedMatrix(p), {}, {within.data() + dims_ * n, probes_, n, n});
  float unit = kernels::measure(within).largest;
  for (const float deviation : working_->deviations) unit = std::max(unit, deviation);
  if (!kernels::scan(within).finite || !(unit > 0) || !std::isfinite(unit)) return;
  for (float& value : within) value /= unit;
  std::vector<float> moments(all * all), variances(all);
  const kernels::Matrix square{moments.data(), all, all, all};
  const kernels::ConstMatrix mean{within.data(), all, n, n};
  kernels::set_product(1, mean, kernels::PackedMatrix(mean.transpose()), {}, square);
  for (std::size_t i = 0; i < dims_; ++i) {
    const float deviation = working_->deviations[i] / unit;
    moments[i * all + i] += static_cast<float>(kForgetting) * deviation * deviation;
  }
  if (!kernels::find_eigenvectors(square, variances) || !kernels::scan(moments).finite) return;

  auto state = std::make_shared<State>();
  state->rows.resize(all * k);
  const kernels::Matrix next{state->rows.data(), all, k, k};
  kernels::set_product(1, square, kernels::PackedMatrix(rows), {}, next);
  orthonormalize(next);
  fill_probes(next);
  for (std::size_t i = 0; i < dims_; ++i) state->deviations.push_back(std::sqrt(std::max(variances[i], 0.0f)) * unit);
  if (kernels::scan(state->rows).finite && kernels::scan(state->deviations).finite) working_ = std::move(state);
}

std::vector<std::byte> FollowedBasis::save() const {
  std::vector<std::byte> saved(2 + (committed_ ? sizeof(Header) + 4 * (committed_->rows.size() + dims_) : 0));
  ByteWriter writer(saved);
  writer.write(kVersion);
  writer.write(static_cast<std::uint8_t>(committed_ ? 1 : 0));
  if (!committed_) return saved;
  writer.write(Header{static_cast<std::uint32_t>(dims_), static_cast<std::uint32_t>(probes_), static_cast<std::uint32_t>(slices_.entries())});
  writer.write_all(std::span<const float>(committed_->rows));
  writer.write_all(std::span<const float>(committed_->deviations));
  return saved;
}

void FollowedBasis::load(std::span<const std::byte> saved) {
  ByteReader reader(saved, kSaved);
  reader.expect_version(kVersion);
  const auto contents = reader.read<std::uint8_t>();
  if (contents > 1) throw PayloadError(std::string(kSaved) + " holds nothing known");
  std::shared_ptr<State> state;
  if (contents == 1) {
    const auto header = reader.read<Header>();
    if (dims_ == 0 || header.dims != dims_ || header.probes != probes_ || header.entries != slices_.entries())
      throw PayloadError(std::string(kSaved) + " holds " + std::to_string(header.dims) + " components for slices of " +
                         std::to_string(header.entries) + " entries; they are " + std::to_string(dims_) + " of " +
                         std::to_string(slices_.entries()) + " now. A parameter whose shape has changed begins anew");
    state = std::make_shared<State>();
    state->rows.resize(all_rows() * slices_.entries());
    state->deviations.resize(dims_);
    reader.read_into(std::span(state->rows));
    reader.read_into(std::span(state->deviations));
    if (!kernels::scan(state->rows).finite || !kernels::scan(state->deviations).finite)
      throw PayloadError(std::string(kSaved) + " holds a number that is not finite");
  }
  reader.expect_end();
  committed_ = std::move(state);
}

}  // namespace thinwire
