#include "compressors/quantizers/qsgd.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compressors/shared/rounding_tiles.h"
#include "core/bytes.h"
#include "core/scratch.h"
#include "kernels/codes.h"
#include "kernels/fields.h"
#include "kernels/statistics.h"
#include "thinwire/errors.h"

namespace thinwire {
Qsgd::Qsgd(const Options& options) : options_(options) {
  if (options.bucket == 0 || options.bucket % kLeastBucket != 0 || options.bucket > kChunkElements)
    throw ArgumentError("compressor 'qsgd': bucket=" + std::to_string(options.bucket) +
                        " is not allowed; it takes a multiple of " + std::to_string(kLeastBucket) + " up to " +
                        std::to_string(kChunkElements));
  if (options.coding != Coding::kFixed && options.travel == Travel::kSum)
    throw ArgumentError(std::string("compressor 'qsgd': coding=") + (options.coding == Coding::kElias ? "elias" : "entropy") +
                        " does not go with reduce=sum, as what is coded does not add up; it takes reduce=auto, gather or scatter");
}

void Qsgd::find_norms(std::span<const float> values, std::span<float> norms) const {
  // Levels times the step must be finite after rounding, too.
  constexpr float kLargest = 0.999f * std::numeric_limits<float>::max();
  if (options_.norm == Norm::kMax) {
    kernels::scan_buckets(values, options_.bucket, norms);
    for (float& norm : norms) norm = std::min(norm, kLargest);
    return;
  }
  for (std::size_t b = 0; b < norms.size(); ++b) {
    const double square = kernels::squared_norm(part_of(values, options_.bucket, b));
    norms[b] = static_cast<float>(std::min(std::sqrt(square), static_cast<double>(kLargest)));
  }
}

// Beneath the least normal number its reciprocal would be infinite.
float Qsgd::step(float norm) const {
  if (norm == 0) return 0;
  return std::max(norm / static_cast<float>(levels()), std::numeric_limits<float>::min());
}

// What is decoded is this much of the level times the step.
float Qsgd::shrinkage(std::size_t elements) const {
  if (!options_.feedback) return 1;
  const auto n = static_cast<double>(elements), s = static_cast<double>(levels());
  const double of_uniform = n / (s * s) / (options_.norm == Norm::kMax ? 4 : 1);
  return static_cast<float>(1 / (1 + std::min(of_uniform, std::sqrt(n) / s)));
}

template <class Body>
void Qsgd::for_each_tile(std::span<const float> values, std::span<const float> steps, RandomSequence random, const Body& body) const {
  for_each_rounding_tile(values.size(), random, [&](std::size_t begin, std::span<const std::uint32_t> words) {
    const std::size_t end = begin + words.size();
    for (std::size_t first = begin; first < end;) {
      const std::size_t b = first / options_.bucket, count = std::min((b + 1) * options_.bucket, end) - first;
      body(Tile{first, values.subspan(first, count), steps[b] > 0 ? 1.0f / steps[b] : 0.0f, words.subspan(first - begin, count)});
      first += count;
    }
  });
}

Exchange Qsgd::exchange(Work& work, Context& context) const {
  const bool sums_best = work.direction == Direction::kToAll && options_.coding == Coding::kFixed && sum_sends_less(context.world_size());
  if (options_.travel == Travel::kSum || (options_.travel == Travel::kAuto && sums_best)) return sum_levels(*this, work, context);
  const Reduce reduce = options_.travel == Travel::kScatter ? Reduce::kScatter : Reduce::kGather;
  if (options_.coding != Coding::kFixed) return reduce_coded(coded_, reduce, work, context);
  return reduce_coded(*this, reduce, work, context);
}

// --- a code for each worker

std::size_t Qsgd::most_bytes(const Piece& piece) const {
  return buckets(piece.elements()) * sizeof(float) + kernels::packed_bytes(piece.elements(), options_.bits);
}

std::size_t Qsgd::encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& /*magnitudes*/,
                               std::span<std::byte> code, std::span<std::byte> /*room*/) const {
  std::array<float, kChunkElements / kLeastBucket> all_steps;
  const auto steps = std::span(all_steps).first(buckets(values.size()));
  find_norms(values, steps);
  for (float& step : steps) step = this->step(step);
  const auto packed = code.subspan(steps.size_bytes());
  const RandomSequence random = pass == Pass::kFirst ? piece.random : piece.random.second();
  for_each_tile(values, steps, random, [&](const Tile& tile) {
    kernels::assign_randomly(tile.values, kernels::EvenLevels{2 * levels(), tile.inverse_step}, options_.bits, tile.words,
                             packed.subspan(kernels::packed_bytes(tile.first, options_.bits),
                                            kernels::packed_bytes(tile.values.size(), options_.bits)));
  });
  for (std::size_t b = 0; b < steps.size(); ++b)
    steps[b] *= shrinkage(std::min(options_.bucket, values.size() - b * options_.bucket));
  ByteWriter(code).write_all(std::span<const float>(steps));
  return code.size();
}

float Qsgd::check(std::span<const std::byte> code, const Piece& piece) const {
  ByteReader reader(code, "a chunk of qsgd");
  float largest = 0;
  for (std::size_t b = 0; b < buckets(piece.elements()); ++b) {
    const auto step = reader.read<float>();
    if (!(step >= 0) || !std::isfinite(step * static_cast<float>(levels())))
      throw PayloadError("a chunk of qsgd holds a step that is negative or not finite");
    largest = std::max(largest, step * static_cast<float>(levels()));
  }
  return largest;
}

kernels::CodedLevels Qsgd::levels_of(std::span<const std::byte> code, std::size_t bucket, std::size_t elements) const {
  float step;
  std::memcpy(&step, code.data() + bucket * sizeof step, sizeof step);
  const std::size_t first = bucket * options_.bucket, count = std::min(options_.bucket, elements - first);
  const auto packed = code.subspan(buckets(elements) * sizeof step + kernels::packed_bytes(first, options_.bits),
                                   kernels::packed_bytes(count, options_.bits));
  return {packed, {2 * levels(), step}};
}

void Qsgd::decode(std::span<const std::byte> code, const Piece& /*piece*/, float weight, bool add, std::span<float> values,
                  std::span<std::byte> /*room*/) const {
  for (std::size_t b = 0; b < buckets(values.size()); ++b) {
    kernels::CodedLevels coded = levels_of(code, b, values.size());
    coded.levels.step *= weight;
    const auto bucket = part_of(values, options_.bucket, b);
    if (add)
      kernels::look_up_add(coded.packed, options_.bits, coded.levels, bucket);
    else
      kernels::look_up(coded.packed, options_.bits, coded.levels, bucket);
  }
}

std::size_t Qsgd::room_bytes(const Piece& /*piece*/, std::size_t codes) const { return codes * sizeof(kernels::CodedLevels); }

void Qsgd::decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& /*piece*/, float weight,
                      std::span<float> values, std::span<std::byte> room) const {
  const auto coded = carve<kernels::CodedLevels>(room, codes.size());
  for (std::size_t b = 0; b < buckets(values.size()); ++b) {
    for (std::size_t i = 0; i < codes.size(); ++i) {
      coded[i] = levels_of(codes[i], b, values.size());
      coded[i].levels.step *= weight;
    }
    kernels::look_up_sum(coded, options_.bits, part_of(values, options_.bucket, b));
  }
}

// --- levels that add up

void Qsgd::measure(const Piece& /*piece*/, std::span<const float> values, std::span<float> norms, std::span<float> /*room*/) const {
  find_norms(values, norms);
}

void Qsgd::to_levels(const Piece& piece, std::span<const float> values, std::span<const float> steps, const LevelsToWrite& levels,
                     std::span<float> /*room*/) const {
  std::array<std::int32_t, kRoundingTile> room;
  for_each_tile(values, steps, piece.random, [&](const Tile& tile) {
    if (tile.inverse_step == 0) return;
    const auto rounded = std::span(room).first(tile.values.size());
    kernels::round_randomly(tile.values, tile.inverse_step, this->levels(), tile.words, rounded);
    levels.put(rounded, tile.first);
  });
}

void Qsgd::from_levels(const Piece& /*piece*/, const LevelsToRead& levels, std::span<const float> steps, float weight, bool subtract,
                       std::span<float> values, std::span<float> /*room*/) const {
  std::array<std::int32_t, kRoundingTile> room;
  for (std::size_t first = 0; first < values.size(); first += kRoundingTile) {
    const auto tile = std::span(room).first(std::min(kRoundingTile, values.size() - first));
    levels.take(first, tile);
    for (std::size_t done = 0; done < tile.size();) {
      const std::size_t b = (first + done) / options_.bucket, end = std::min((b + 1) * options_.bucket, values.size());
      const std::size_t count = std::min(end - first - done, tile.size() - done);
      const float step = steps[b] * shrinkage(end - b * options_.bucket);
      const auto part = values.subspan(first + done, count);
      if (subtract)
        kernels::subtract_levels(tile.subspan(done, count), weight * step, part);
      else
        kernels::scale_levels(tile.subspan(done, count), weight * step, part);
      done += count;
    }
  }
}

bool Qsgd::sum_sends_less(int world_size) const {
  const int fields = 32 / std::bit_width(static_cast<unsigned>(2 * world_size * levels()));
  const double bits_of_sum = 2.0 / world_size * 32 / fields;
  return bits_of_sum < options_.bits;
}

}  // namespace thinwire
