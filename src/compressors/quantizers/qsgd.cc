#include "compressors/quantizers/qsgd.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "compressors/shared/message.h"
#include "core/bytes.h"
#include "kernels/codes.h"
#include "kernels/fields.h"
#include "kernels/rounding.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::size_t kTile = 1024;  // values that are rounded at a time
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

}  // namespace

Qsgd::Qsgd(const Options& options) : options_(options) {
  if (options.bucket == 0 || options.bucket % kernels::kWordGroup != 0 || options.bucket > kChunkElements)
    throw ArgumentError("compressor 'qsgd': bucket=" + std::to_string(options.bucket) +
                        " is not allowed; it takes a multiple of " + std::to_string(kernels::kWordGroup) + " up to " +
                        std::to_string(kChunkElements));
}

float Qsgd::norm(std::span<const float> bucket) const {
  // Levels times the step must be finite after rounding, too.
  constexpr float kLargest = 0.999f * std::numeric_limits<float>::max();
  if (options_.norm == Norm::kL2)
    return static_cast<float>(std::min(std::sqrt(kernels::squared_norm(bucket)), static_cast<double>(kLargest)));
  return std::min(kernels::measure(bucket).largest, kLargest);
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
void Qsgd::round(std::span<const float> values, std::span<const float> steps, RandomSequence random, const Body& body) const {
  std::array<std::uint32_t, kTile> words;
  std::array<std::int32_t, kTile> rounded;
  for (std::size_t b = 0; b < steps.size(); ++b) {
    if (!(steps[b] > 0)) continue;
    const std::size_t end = std::min((b + 1) * options_.bucket, values.size());
    for (std::size_t first = b * options_.bucket; first < end; first += kTile) {
      const std::size_t count = std::min(kTile, end - first);
      RandomSequence from = random;
      from.counter[0] += static_cast<std::uint32_t>(first / 4);
      kernels::random_words(from.counter, from.key, std::span(words).first(count));
      kernels::round_randomly(values.subspan(first, count), 1.0f / steps[b], levels(), words, std::span(rounded).first(count));
      body(std::span<const std::int32_t>(rounded).first(count), first, b);
    }
  }
}

Exchange Qsgd::exchange(Work& work, Context& context) const {
  switch (options_.travel) {
    case Travel::kGather:
      return reduce_coded(*this, Reduce::kGather, work, context);
    case Travel::kScatter:
      return reduce_coded(*this, Reduce::kScatter, work, context);
    case Travel::kSum:
      return sum(work, context);
    case Travel::kAuto:
      break;
  }
  return sum_sends_less(context.world_size()) ? sum(work, context) : reduce_coded(*this, Reduce::kGather, work, context);
}

// --- a code for each worker

std::size_t Qsgd::encoded_bytes(const Piece& piece) const {
  const std::size_t elements = piece.gradient.size();
  return buckets(elements) * sizeof(float) + kernels::packed_bytes(elements, options_.bits);
}

void Qsgd::encode(Piece& piece, const kernels::Magnitudes& /*magnitudes*/, std::span<std::byte> encoded) const {
  const std::span<float> values = piece.values();
  std::array<float, kChunkElements / kernels::kWordGroup> all_steps;
  const auto steps = std::span(all_steps).first(buckets(values.size()));
  for (std::size_t b = 0; b < steps.size(); ++b) {
    const std::size_t first = b * options_.bucket;
    steps[b] = step(norm(values.subspan(first, std::min(options_.bucket, values.size() - first))));
  }
  std::array<std::uint8_t, kChunkElements> all_codes;
  const auto codes = std::span(all_codes).first(values.size());
  std::ranges::fill(codes, static_cast<std::uint8_t>(levels()));
  round(values, steps, piece.random, [&](std::span<const std::int32_t> rounded, std::size_t first, std::size_t) {
    for (std::size_t i = 0; i < rounded.size(); ++i) codes[first + i] = static_cast<std::uint8_t>(rounded[i] + levels());
  });
  for (std::size_t b = 0; b < steps.size(); ++b)
    steps[b] *= shrinkage(std::min(options_.bucket, values.size() - b * options_.bucket));
  ByteWriter writer(encoded);
  writer.write_all(std::span<const float>(steps));
  kernels::pack(codes, options_.bits, writer.take(writer.left()));
  if (piece.has_residual())
    for_each_bucket(encoded, values, [&](std::span<const std::byte> packed, float step, std::span<float> bucket) {
      kernels::look_up_add(packed, options_.bits, {2 * levels(), -step}, bucket);
    });
}

void Qsgd::check(std::span<const std::byte> encoded, const Piece& piece) const {
  ByteReader reader(encoded, "a chunk of qsgd");
  for (std::size_t b = 0; b < buckets(piece.gradient.size()); ++b) {
    const auto step = reader.read<float>();
    if (!(step >= 0) || !std::isfinite(step * static_cast<float>(levels())))
      throw PayloadError("a chunk of qsgd holds a step that is negative or not finite");
  }
}

template <class Body>
void Qsgd::for_each_bucket(std::span<const std::byte> encoded, std::span<float> elements, const Body& body) const {
  ByteReader steps(encoded, "a chunk of qsgd");
  const auto codes = encoded.subspan(buckets(elements.size()) * sizeof(float));
  for (std::size_t first = 0; first < elements.size(); first += options_.bucket) {
    const auto bucket = elements.subspan(first, std::min(options_.bucket, elements.size() - first));
    body(codes.subspan(kernels::packed_bytes(first, options_.bits), kernels::packed_bytes(bucket.size(), options_.bits)),
         steps.read<float>(), bucket);
  }
}

void Qsgd::decode(std::span<const std::byte> encoded, const Piece& /*piece*/, float weight, bool add,
                  std::span<float> mean) const {
  for_each_bucket(encoded, mean, [&](std::span<const std::byte> packed, float step, std::span<float> bucket) {
    const kernels::Levels scale{2 * levels(), weight * step};
    if (add)
      kernels::look_up_add(packed, options_.bits, scale, bucket);
    else
      kernels::look_up(packed, options_.bits, scale, bucket);
  });
}

// --- levels that add up

// The fields that a message's levels are summed in: a piece has `words` words, and its element i is a field of word
// i mod words, the (i / words)-th.
class Qsgd::Sums {
 public:
  Sums(const Qsgd& qsgd, const Work& work, Context& context)
      : qsgd_(qsgd),
        width_(std::bit_width(static_cast<unsigned>(2 * context.world_size() * qsgd.levels()))),
        limit_(context.world_size() * qsgd.levels()),
        word_begins_(context.scratch().take<std::size_t>(work.pieces.size() + 1)),
        norm_begins_(context.scratch().take<std::size_t>(work.pieces.size() + 1)) {
    word_begins_[0] = norm_begins_[0] = 0;
    for (std::size_t i = 0; i < work.pieces.size(); ++i) {
      const std::size_t elements = work.pieces[i].gradient.size();
      word_begins_[i + 1] = word_begins_[i] + (elements + fields() - 1) / fields();
      norm_begins_[i + 1] = norm_begins_[i] + qsgd.buckets(elements);
    }
    words_ = context.scratch().take<std::int32_t>(word_begins_.back());
    norms_ = context.scratch().take<float>(norm_begins_.back() + (work.feedback ? work.pieces.size() : 0));
  }

  std::span<std::int32_t> words() const { return words_; }
  std::span<float> norms_and_marks() const { return norms_; }
  float& mark(std::size_t piece) const { return norms_[norm_begins_.back() + piece]; }

  void measure(const Piece& piece, std::size_t index, bool finite) const {
    const std::span<float> norms = norms_of(index);
    for (std::size_t b = 0; b < norms.size(); ++b) {
      const std::size_t first = b * qsgd_.options_.bucket;
      const auto bucket = piece.values().subspan(first, std::min(qsgd_.options_.bucket, piece.values().size() - first));
      norms[b] = finite ? qsgd_.norm(bucket) : kNotANumber;
    }
  }

  // Norms become steps, and values levels. Where somebody's bucket is not finite, a step that is no number makes the mean so.
  void encode(Piece& piece, std::size_t index) const {
    const std::span<float> steps = norms_of(index);
    for (float& step : steps) step = std::isfinite(step) ? qsgd_.step(step) : kNotANumber;
    const auto words = words_of(index);
    std::fill(words.begin(), words.end(), 0);
    const std::span<float> values = piece.values();
    qsgd_.round(values, steps, piece.random, [&](std::span<const std::int32_t> levels, std::size_t first, std::size_t b) {
      for_each_field(words, first, levels.size(), [&](const kernels::Field& field, auto part, std::size_t from, std::size_t count) {
        kernels::add_field(levels.subspan(from, count), field, part);
      });
      if (piece.has_residual())
        kernels::subtract_levels(levels, steps[b] * shrinkage(b, values.size()), values.subspan(first, levels.size()));
    });
  }

  void decode(std::span<float> mean, std::size_t index, float weight) const {
    const std::span<const float> steps = norms_of(index);
    const auto words = words_of(index);
    std::array<std::int32_t, kTile> levels;
    for (std::size_t first = 0; first < mean.size(); first += kTile) {
      const auto tile = std::span(levels).first(std::min(kTile, mean.size() - first));
      for_each_field(words, first, tile.size(), [&](const kernels::Field& field, auto part, std::size_t from, std::size_t count) {
        kernels::take_field(part, field, biases(), tile.subspan(from, count));
      });
      for (std::size_t done = 0; done < tile.size();) {
        const std::size_t b = (first + done) / qsgd_.options_.bucket;
        const std::size_t count = std::min((b + 1) * qsgd_.options_.bucket - first - done, tile.size() - done);
        kernels::scale_levels(tile.subspan(done, count), weight * steps[b] * shrinkage(b, mean.size()), mean.subspan(first + done, count));
        done += count;
      }
    }
  }

 private:
  std::size_t fields() const { return 32 / static_cast<std::size_t>(width_); }
  std::span<float> norms_of(std::size_t piece) const {
    return norms_.subspan(norm_begins_[piece], norm_begins_[piece + 1] - norm_begins_[piece]);
  }
  std::span<std::int32_t> words_of(std::size_t piece) const {
    return words_.subspan(word_begins_[piece], word_begins_[piece + 1] - word_begins_[piece]);
  }
  kernels::Field field(std::size_t number) const { return {static_cast<int>(number) * width_, width_, limit_}; }
  std::uint32_t biases() const {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < fields(); ++i) sum += field(i).bias();
    return sum;
  }
  float shrinkage(std::size_t bucket, std::size_t elements) const {
    return qsgd_.shrinkage(std::min(qsgd_.options_.bucket, elements - bucket * qsgd_.options_.bucket));
  }

  // Calls body(field, its words, from, count) for the fields that hold `count` of a piece's elements from `first` on.
  template <class Body>
  void for_each_field(std::span<std::int32_t> words, std::size_t first, std::size_t count, const Body& body) const {
    for (std::size_t done = 0; done < count;) {
      const std::size_t number = (first + done) / words.size(), within = (first + done) % words.size();
      const std::size_t part = std::min(words.size() - within, count - done);
      body(field(number), words.subspan(within, part), done, part);
      done += part;
    }
  }

  const Qsgd& qsgd_;
  int width_;
  std::int32_t limit_;  // of sums
  std::span<std::size_t> word_begins_;
  std::span<std::size_t> norm_begins_;
  std::span<std::int32_t> words_;
  std::span<float> norms_;  // then, with feedback, a mark a piece: 1 if somebody used it
};

bool Qsgd::sum_sends_less(int world_size) const {
  const int fields = 32 / std::bit_width(static_cast<unsigned>(2 * world_size * levels()));
  const double bits_of_sum = 2.0 / world_size * 32 / fields;
  return bits_of_sum < options_.bits;
}

Exchange Qsgd::sum(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  const Sums sums(*this, work, context);
  for_each_piece(work, context, [&](Piece& piece, std::size_t i) {
    sums.measure(piece, i, open(piece, work).finite);
    if (work.feedback) sums.mark(i) = piece.used ? 1 : 0;
  });
  if (!context.finite) sums.norms_and_marks()[0] = kNotANumber;
  Await norms = context.max(sums.norms_and_marks());
  co_await norms;

  if (flagged(sums.norms_and_marks(), context)) co_return;
  const auto is_skipped = [&](std::size_t i) { return work.feedback && !(sums.mark(i) > 0); };
  for_each_piece(work, context, [&](Piece& piece, std::size_t i) { sums.encode(piece, i); });
  Await round = context.sum(sums.words());
  co_await round;

  context.enter(Phase::kDecode);
  for_each_piece(work, context, [&](Piece& piece, std::size_t i) {
    if (is_skipped(i)) return skip(piece);
    sums.decode(piece.mean(), i, 1.0f / static_cast<float>(context.world_size()));
    piece.stage = Piece::Stage::kDone;
  });
}

}  // namespace thinwire
