#include "compressors/quantizers/levels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compressors/shared/rounding_tiles.h"
#include "core/scratch.h"
#include "kernels/codes.h"
#include "kernels/statistics.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kMostNorm = 0.999f * std::numeric_limits<float>::max();  // what is sent times the outermost level must be finite

// A power of two by the eight bits of its exponent, of which 0 means 2^-127; and these bits of any magnitude.
float power_of_two(std::uint32_t exponent) { return exponent == 0 ? 0x1p-127f : std::bit_cast<float>(exponent << 23); }
std::uint32_t exponent_of(float magnitude) { return std::bit_cast<std::uint32_t>(magnitude) >> 23; }

// Between two neighbours: what is above it belongs to the upper one.
float threshold_between(float low, float high, bool middle_is_high) {
  const float middle = 0.5f * low + 0.5f * high;
  return middle_is_high ? std::nextafter(middle, -kInfinite) : middle;
}

std::vector<float> thresholds_between(const std::vector<float>& levels) {
  const auto zero = std::ranges::find(levels, 0.0f);
  std::vector<float> thresholds;
  for (std::size_t i = 0; i + 1 < levels.size(); ++i) {
    const bool high_is_even = zero != levels.end() && (static_cast<std::ptrdiff_t>(i + 1) - (zero - levels.begin())) % 2 == 0;
    thresholds.push_back(threshold_between(levels[i], levels[i + 1], high_is_even));
  }
  return thresholds;
}

// What they are if they are evenly spaced around 0; else a step of 0.
kernels::EvenLevels even_levels(const std::vector<float>& levels) {
  const float step = levels[1] - levels[0];
  for (std::size_t i = 1; i < levels.size(); ++i)
    if (levels[i] - levels[i - 1] != step) return {};
  if (levels.front() != -levels.back()) return {};
  return {static_cast<int>(levels.size()) - 1, 1 / step};
}

double standard_deviation(std::span<const float> values) {
  const kernels::Moments moments = kernels::moments(values);
  const auto n = static_cast<double>(values.size());
  const double mean = moments.sum / n;
  return std::sqrt(std::max(0.0, moments.sum_squares / n - mean * mean));
}

double mean_magnitude(std::span<const float> values) {
  const kernels::Magnitudes magnitudes = kernels::measure(values);
  const auto n = static_cast<double>(values.size());
  if (std::isfinite(magnitudes.sum_abs)) return static_cast<double>(magnitudes.sum_abs) / n;
  double sum = 0;
  for (const float value : values) sum += std::abs(static_cast<double>(value));
  return sum / n;
}

// E/(E + V), of values between levels.
float shrunk(std::span<const float> values, std::span<const float> levels) {
  double energy = 0, variance = 0;
  for (const float value : values) {
    const auto above = std::clamp(std::ranges::upper_bound(levels, value), levels.begin() + 1, levels.end() - 1);
    const auto v = static_cast<double>(value);
    energy += v * v;
    variance += std::max(0.0, (static_cast<double>(*above) - v) * (v - static_cast<double>(above[-1])));
  }
  return energy > 0 ? static_cast<float>(energy / (energy + variance)) : 1.0f;
}

}  // namespace

Levels::Levels(const Options& options)
    : options_(options), bits_(static_cast<int>(std::bit_width(options.levels.size() - 1))), outermost_(options.levels.back()), table_(options.levels),
      thresholds_(thresholds_between(options.levels)) {
  table_.resize(std::size_t{1} << bits_, outermost_);
  thresholds_.resize(table_.size() - 1, kInfinite);
  if (options.rounding == Rounding::kRandom && !options.fit && options.bucket == kChunkElements) even_ = even_levels(options.levels);
}

// `largest` is that of all values.
void Levels::find_norms(std::span<float> values, float largest, std::span<float> norms) const {
  if (options_.norm == Norm::kLargest || options_.norm == Norm::kPowerOfTwo) {
    if (norms.size() == 1) norms[0] = largest;
    else kernels::scan_buckets(values, options_.bucket, norms);
    return;
  }
  for (std::size_t b = 0; b < norms.size(); ++b) {
    const std::span<const float> bucket = part_of(values, options_.bucket, b);
    const double norm = options_.norm == Norm::kEuclidean ? std::sqrt(kernels::squared_norm(bucket)) : mean_magnitude(bucket);
    norms[b] = static_cast<float>(std::min(norm, static_cast<double>(kMostNorm)));
  }
}

float Levels::unit_of(std::span<const float> bucket, float norm) const {
  if (norm == 0) return 0;
  if (options_.norm == Norm::kPowerOfTwo)
    return power_of_two(std::max(exponent_of(norm) + exponent_of(1.0f), exponent_of(outermost_)) - exponent_of(outermost_));
  if (options_.clip > 0) norm = std::min(norm, static_cast<float>(options_.clip * standard_deviation(bucket)));
  return std::max(std::min(norm, kMostNorm) / outermost_, std::numeric_limits<float>::denorm_min());
}

void Levels::write_unit(float unit, std::span<std::byte> units, std::size_t bucket) const {
  if (options_.norm == Norm::kPowerOfTwo)
    units[bucket] = static_cast<std::byte>(exponent_of(unit));
  else
    std::memcpy(units.data() + bucket * sizeof unit, &unit, sizeof unit);
}

float Levels::read_unit(std::span<const std::byte> units, std::size_t bucket) const {
  if (options_.norm == Norm::kPowerOfTwo) return power_of_two(std::to_integer<std::uint32_t>(units[bucket]));
  float unit;
  std::memcpy(&unit, units.data() + bucket * sizeof unit, sizeof unit);
  return unit;
}

std::size_t Levels::most_bytes(const Piece& piece) const {
  return all_unit_bytes(piece.elements()) + level_bytes() + kernels::packed_bytes(piece.elements(), bits_);
}

// Into numbers of levels, which may be this chunk's own. Even levels take values that are yet to be multiplied by 1 / their unit.
void Levels::assign_randomly(std::span<const float> values, std::span<const float> levels, float inverse_unit, const RandomSequence& random,
                             std::span<std::byte> packed) const {
  const kernels::EvenLevels even{even_.largest, even_.inverse_step * inverse_unit};
  for_each_rounding_tile(values.size(), random, [&](std::size_t first, std::span<const std::uint32_t> words) {
    const auto tile = values.subspan(first, words.size());
    const auto into = packed.subspan(kernels::packed_bytes(first, bits_), kernels::packed_bytes(tile.size(), bits_));
    if (is_even()) kernels::assign_randomly(tile, even, bits_, words, into);
    else if (options_.floats) kernels::assign_randomly(tile, *options_.floats, bits_, words, into);
    else kernels::assign_randomly(tile, levels, bits_, words, into);
  });
}

std::size_t Levels::encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                                 std::span<std::byte> code, std::span<std::byte> room) const {
  const std::size_t unit_end = all_unit_bytes(values.size());
  const auto units = code.first(unit_end), sent_levels = code.subspan(unit_end, level_bytes());
  const auto packed = code.subspan(unit_end + sent_levels.size());
  const auto inverse_units = carve<float>(room, buckets(values.size()));
  find_norms(values, magnitudes.largest, inverse_units);
  for (std::size_t b = 0; b < inverse_units.size(); ++b) {
    const auto bucket = part_of(values, options_.bucket, b);
    const float unit = unit_of(bucket, inverse_units[b]);
    write_unit(unit, units, b);
    inverse_units[b] = unit > 0 ? kernels::inverse_of(unit, bucket) : 0;
  }
  if (!is_even()) kernels::multiply_buckets(values, options_.bucket, inverse_units);
  if (options_.rounding == Rounding::kNearest) {
    if (options_.floats) kernels::assign(values, *options_.floats, bits_, packed);
    else kernels::assign(values, thresholds_, bits_, packed);
    return code.size();
  }
  Table fitted, shrunken;
  std::span<const float> levels = options_.levels;
  if (options_.fit) {
    const auto sent = std::span(fitted).first(table_.size());
    levels = sent.first(options_.fit(values, sent));
    std::ranges::fill(sent.subspan(levels.size()), levels.back());
    const float factor = options_.shrinks ? shrunk(values, levels) : 1.0f;
    std::ranges::transform(sent, shrunken.begin(), [=](float level) { return factor * level; });
    std::memcpy(sent_levels.data(), shrunken.data(), sent_levels.size());
  }
  assign_randomly(values, levels, inverse_units[0], pass == Pass::kFirst ? piece.random : piece.random.second(), packed);
  return code.size();
}

Levels::Parts Levels::parts(std::span<const std::byte> code, std::size_t elements) const {
  const std::size_t unit_end = all_unit_bytes(elements);
  return {code.first(unit_end), code.subspan(unit_end, level_bytes()), code.subspan(unit_end + level_bytes())};
}

std::span<const float> Levels::levels_in(std::span<const std::byte> sent, Table& room) const {
  if (sent.empty()) return table_;
  std::memcpy(room.data(), sent.data(), sent.size());
  return std::span(room).first(table_.size());
}

float Levels::check(std::span<const std::byte> code, const Piece& piece) const {
  float largest = 0;
  for (std::size_t b = 0; b < buckets(piece.elements()); ++b) {
    const float unit = read_unit(code, b);
    if (!(unit >= 0) || !std::isfinite(unit * outermost_))
      throw PayloadError("a chunk of " + options_.name + " has a bucket whose unit is " + std::to_string(unit) +
                         "; it must be 0 or positive, and the outermost level finite");
    largest = std::max(largest, unit * outermost_);
  }
  if (!options_.fit) return largest;
  Table room;
  for (const float level : levels_in(parts(code, piece.elements()).levels, room))
    if (!(std::abs(level) <= outermost_))
      throw PayloadError("a chunk of " + options_.name + " has the level " + std::to_string(level) + "; it must be from -1 to 1");
  return largest;
}

// Values of levels to decode, or what the codes mean to decode several at once.
std::size_t Levels::room_bytes(const Piece& piece, std::size_t codes) const {
  return std::max(piece.elements() * sizeof(float), codes * (sizeof(kernels::Coded) + table_.size() * sizeof(float)));
}

// Units first: weights that round a small unit would be multiplied by levels.
void Levels::write_entries(std::span<const float> levels, float unit, float weight, std::span<float> entries) {
  std::ranges::transform(levels, entries.begin(), [=](float level) { return weight * (unit * level); });
}

void Levels::decode(std::span<const std::byte> code, const Piece& /*piece*/, float weight, bool add, std::span<float> values,
                    std::span<std::byte> room) const {
  const std::size_t count = buckets(values.size());
  const auto [units, sent_levels, packed] = parts(code, values.size());
  Table own;
  const std::span<const float> all_levels = levels_in(sent_levels, own);
  if (count == 1) {
    Table entries;
    const auto table = std::span(entries).first(all_levels.size());
    write_entries(all_levels, read_unit(units, 0), weight, table);
    return add ? kernels::look_up_add(packed, bits_, table, values) : kernels::look_up(packed, bits_, table, values);
  }
  const auto levels = carve<float>(room, values.size());
  if (is_whole()) kernels::look_up(packed, bits_, kernels::Levels{2 * options_.floats->count, 1.0f}, levels);
  else kernels::look_up(packed, bits_, all_levels, levels);
  for (std::size_t b = 0; b < count; ++b) {
    const float unit = read_unit(units, b);
    const std::size_t first = b * options_.bucket, last = std::min(first + options_.bucket, values.size());
    if (add)
      for (std::size_t i = first; i < last; ++i) values[i] += weight * (unit * levels[i]);
    else
      for (std::size_t i = first; i < last; ++i) values[i] = weight * (unit * levels[i]);
  }
}

void Levels::decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& piece, float weight, std::span<float> values,
                        std::span<std::byte> room) const {
  if (buckets(values.size()) > 1) return Codec::decode_sum(codes, piece, weight, values, room);
  const auto coded = carve<kernels::Coded>(room, codes.size());
  const auto tables = carve<float>(room, codes.size() * table_.size());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const auto table = tables.subspan(i * table_.size(), table_.size());
    const auto [units, sent_levels, packed] = parts(codes[i], values.size());
    Table own;
    write_entries(levels_in(sent_levels, own), read_unit(units, 0), weight, table);
    coded[i] = {packed, table};
  }
  kernels::look_up_sum(coded, bits_, values);
}

}  // namespace thinwire
