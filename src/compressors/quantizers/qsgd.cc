#include "compressors/quantizers/qsgd.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compressors/shared/averaging.h"
#include "core/bytes.h"
#include "core/scratch.h"
#include "kernels/codes.h"
#include "kernels/fields.h"
#include "kernels/rounding.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::size_t kTile = 1024;  // values that are rounded at a time

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
  return !work.owners_keep_means && sum_sends_less(context.world_size()) ? sum(work, context) : reduce_coded(*this, Reduce::kGather, work, context);
}

// --- a code for each worker

std::size_t Qsgd::most_bytes(const Piece& piece) const {
  return buckets(piece.elements()) * sizeof(float) + kernels::packed_bytes(piece.elements(), options_.bits);
}

std::size_t Qsgd::encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& /*magnitudes*/,
                               std::span<std::byte> code, std::span<std::byte> /*room*/) const {
  std::array<float, kChunkElements / kernels::kWordGroup> all_steps;
  const auto steps = std::span(all_steps).first(buckets(values.size()));
  for (std::size_t b = 0; b < steps.size(); ++b) {
    const std::size_t first = b * options_.bucket;
    steps[b] = step(norm(values.subspan(first, std::min(options_.bucket, values.size() - first))));
  }
  std::array<std::uint8_t, kChunkElements> all_codes;
  const auto codes = std::span(all_codes).first(values.size());
  std::ranges::fill(codes, static_cast<std::uint8_t>(levels()));
  const RandomSequence random = pass == Pass::kFirst ? piece.random : piece.random.second();
  round(values, steps, random, [&](std::span<const std::int32_t> rounded, std::size_t first, std::size_t) {
    for (std::size_t i = 0; i < rounded.size(); ++i) codes[first + i] = static_cast<std::uint8_t>(rounded[i] + levels());
  });
  for (std::size_t b = 0; b < steps.size(); ++b)
    steps[b] *= shrinkage(std::min(options_.bucket, values.size() - b * options_.bucket));
  ByteWriter writer(code);
  writer.write_all(std::span<const float>(steps));
  kernels::pack(codes, options_.bits, writer.take(writer.left()));
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
    const auto bucket = values.subspan(b * options_.bucket, std::min(options_.bucket, values.size() - b * options_.bucket));
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
    kernels::look_up_sum(coded, options_.bits, values.subspan(b * options_.bucket, std::min(options_.bucket, values.size() - b * options_.bucket)));
  }
}

// --- levels that add up

// The fields that a message's levels are summed in: a piece has `words` words, and its element i is a field of word
// i mod words, the (i / words)-th.
class Qsgd::Sums {
 public:
  Sums(const Qsgd& qsgd, const Work& work, Context& context)
      : qsgd_(qsgd),
        work_(work),
        width_(std::bit_width(static_cast<unsigned>(2 * context.world_size() * qsgd.levels()))),
        limit_(context.world_size() * qsgd.levels()),
        head_(work, context.scratch()),
        word_begins_(context.scratch().take<std::size_t>(work.pieces.size() + 1)),
        norm_begins_(context.scratch().take<std::size_t>(work.pieces.size() + 1)) {
    word_begins_[0] = norm_begins_[0] = 0;
    for (std::size_t i = 0; i < work.pieces.size(); ++i) {
      const std::size_t elements = work.pieces[i].elements();
      word_begins_[i + 1] = word_begins_[i] + (elements + fields() - 1) / fields();
      norm_begins_[i + 1] = norm_begins_[i] + qsgd.buckets(elements);
    }
    words_ = context.scratch().take<std::int32_t>(word_begins_.back());
    if (work.feedback || work.measured) own_words_ = context.scratch().take<std::int32_t>(words_.size());
    norms_ = context.scratch().take<float>(norm_begins_.back() + head_.numbers());
    longest_ = longest_piece(work);
    values_ = context.scratch().take<float>(longest_ * context.threads().threads());
  }

  std::span<std::int32_t> words() const { return words_; }
  const Head& head() const { return head_; }

  // The first round's message: norms, of which the largest counts, and the head.
  std::span<float> measure(Context& context) {
    for_each_piece(work_, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
      const auto values = room(thread, piece);
      const kernels::Opened opened = read_values(piece, work_, values);
      head_.note(i, opened);
      const std::span<float> norms = norms_of(i);
      for (std::size_t b = 0; b < norms.size(); ++b) {
        const std::size_t first = b * qsgd_.options_.bucket;
        norms[b] = opened.sum.finite ? qsgd_.norm(values.subspan(first, std::min(qsgd_.options_.bucket, values.size() - first))) : 0;
      }
    });
    head_.write(norms_.subspan(norm_begins_.back()), 1.0f);
    return norms_;
  }

  // What came back of it. False if some worker's values are not finite, or norms are none.
  bool read_norms() {
    head_.read<float>(norms_.subspan(norm_begins_.back()));
    const auto norms = norms_.first(norm_begins_.back());
    const kernels::Scan scan = kernels::scan(norms);
    largest_norm_ = scan.largest;
    for (float& norm : norms) norm = qsgd_.step(norm);
    return head_.finite() && scan.finite;
  }

  // Norms are steps by now; values become levels. Keeps this worker's own, where they are wanted again.
  void encode(Context& context) {
    for_each_piece(work_, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
      const auto values = room(thread, piece);
      read_values(piece, work_, values);
      const auto words = words_of(words_, i);
      std::fill(words.begin(), words.end(), 0);
      qsgd_.round(values, norms_of(i), piece.random, [&](std::span<const std::int32_t> levels, std::size_t first, std::size_t) {
        for_each_field(words, first, levels.size(), [&](const kernels::Field& field, auto part, std::size_t from, std::size_t count) {
          kernels::add_field(levels.subspan(from, count), field, part);
        });
      });
      if (!own_words_.empty()) std::ranges::copy(words, words_of(own_words_, i).begin());
    });
  }

  // Whether all means can be stored.
  bool means_fit(Context& context) const {
    if (fits(work_, static_cast<double>(largest_norm_))) return true;
    return all_pieces(context, work_, [&](std::size_t i, std::size_t thread) {
      const auto mean = room(thread, work_.pieces[i]);
      decode_mean(i, mean, context.world_size());
      return holds_mean(work_, mean);
    });
  }

  void commit_means(Context& context) const {
    const CommitRooms rooms(work_, context);
    for_each_piece(work_, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
      if (head_.is_skipped(i)) return skip(piece);
      const CommitRoom room = rooms.read(work_, i, thread);
      if (!room.left.empty())
        for_each_level(own_words_, i, room.left.size(), [&](std::span<const std::int32_t> levels, float step, std::size_t first) {
          kernels::subtract_levels(levels, step, room.left.subspan(first, levels.size()));
        });
      decode_mean(i, room.mean, context.world_size());
      commit(work_, i, room);
    });
  }

 private:
  std::span<float> room(std::size_t thread, const Piece& piece) const { return values_.subspan(thread * longest_, piece.elements()); }

  void decode_mean(std::size_t piece, std::span<float> mean, int workers) const {
    const float weight = 1.0f / static_cast<float>(workers);
    for_each_level(words_, piece, mean.size(), [&](std::span<const std::int32_t> levels, float step, std::size_t first) {
      kernels::scale_levels(levels, weight * step, mean.subspan(first, levels.size()));
    });
  }

  // Calls body(levels, what one is worth, first) for the levels of neighbouring elements of a piece, of one bucket each.
  template <class Body>
  void for_each_level(std::span<std::int32_t> all_words, std::size_t piece, std::size_t elements, const Body& body) const {
    const std::span<const float> steps = norms_of(piece);
    const auto words = words_of(all_words, piece);
    std::array<std::int32_t, kTile> levels;
    for (std::size_t first = 0; first < elements; first += kTile) {
      const auto tile = std::span(levels).first(std::min(kTile, elements - first));
      for_each_field(words, first, tile.size(), [&](const kernels::Field& field, auto part, std::size_t from, std::size_t count) {
        kernels::take_field(part, field, biases(), tile.subspan(from, count));
      });
      for (std::size_t done = 0; done < tile.size();) {
        const std::size_t b = (first + done) / qsgd_.options_.bucket;
        const std::size_t count = std::min((b + 1) * qsgd_.options_.bucket - first - done, tile.size() - done);
        body(std::span<const std::int32_t>(tile.subspan(done, count)), steps[b] * shrinkage(b, elements), first + done);
        done += count;
      }
    }
  }

  std::size_t fields() const { return 32 / static_cast<std::size_t>(width_); }
  std::span<float> norms_of(std::size_t piece) const {
    return norms_.subspan(norm_begins_[piece], norm_begins_[piece + 1] - norm_begins_[piece]);
  }
  std::span<std::int32_t> words_of(std::span<std::int32_t> all, std::size_t piece) const {
    return all.subspan(word_begins_[piece], word_begins_[piece + 1] - word_begins_[piece]);
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
  const Work& work_;
  int width_;
  std::int32_t limit_;  // of sums
  Head head_;
  std::span<std::size_t> word_begins_;
  std::span<std::size_t> norm_begins_;
  std::span<std::int32_t> words_, own_words_;
  std::span<float> norms_;  // then the head's numbers
  float largest_norm_ = 0;
  std::size_t longest_ = 0;
  std::span<float> values_;  // room for a piece in each thread
};

bool Qsgd::sum_sends_less(int world_size) const {
  const int fields = 32 / std::bit_width(static_cast<unsigned>(2 * world_size * levels()));
  const double bits_of_sum = 2.0 / world_size * 32 / fields;
  return bits_of_sum < options_.bits;
}

Exchange Qsgd::sum(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  Sums sums(*this, work, context);
  Await norms = context.max(sums.measure(context));
  co_await norms;

  if (!sums.read_norms()) {
    context.any_non_finite = true;
    co_return;
  }
  sums.encode(context);
  Await round = context.sum(sums.words());
  co_await round;

  context.enter(Phase::kDecode);
  if (!sums.means_fit(context)) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  sums.commit_means(context);
}

}  // namespace thinwire
