#include "compressors/quantizers/summed_levels.h"

#include <algorithm>
#include <bit>

#include "compressors/shared/averaging.h"

namespace thinwire {

LevelFields::LevelFields(std::int32_t levels, int workers)
    : width_(std::bit_width(static_cast<unsigned>(2 * workers * levels))), limit_(workers * levels) {
  for (std::size_t i = 0; i < fields(); ++i) biases_ += field(i).bias();
}

// Calls body(field, its words, from, count) for the fields that hold `count` entries from `first` on.
template <class Words, class Body>
void LevelFields::for_each_field(std::span<Words> words, std::size_t first, std::size_t count, const Body& body) const {
  for (std::size_t done = 0; done < count;) {
    const std::size_t number = (first + done) / words.size(), within = (first + done) % words.size();
    const std::size_t part = std::min(words.size() - within, count - done);
    body(field(number), words.subspan(within, part), done, part);
    done += part;
  }
}

void LevelFields::add(std::span<const std::int32_t> levels, std::size_t first, std::span<std::int32_t> words) const {
  for_each_field(words, first, levels.size(), [&](const kernels::Field& field, auto part, std::size_t from, std::size_t count) {
    kernels::add_field(levels.subspan(from, count), field, part);
  });
}

void LevelFields::take(std::span<const std::int32_t> words, std::size_t first, std::span<std::int32_t> levels) const {
  for_each_field(words, first, levels.size(), [&](const kernels::Field& field, auto part, std::size_t from, std::size_t count) {
    kernels::take_field(part, field, biases_, levels.subspan(from, count));
  });
}

namespace {

// A message's norms and words.
class Sums {
 public:
  Sums(const SummedCode& code, const Work& work, Context& context)
      : code_(code),
        work_(work),
        fields_(code.levels(), context.world_size()),
        head_(work, context.scratch()),
        word_parts_(work, context, [&](std::size_t i) { return fields_.words(code.entries(work.pieces[i].elements())); }),
        norm_parts_(work, context, [&](std::size_t i) { return code.norms(work.pieces[i].elements()); }),
        longest_(longest_piece(work)) {
    words_ = context.scratch().take<std::int32_t>(word_parts_.count());
    if (work.feedback || work.measured) own_words_ = context.scratch().take<std::int32_t>(words_.size());
    norms_ = context.scratch().take<float>(norm_parts_.count() + head_.numbers());
    values_ = context.scratch().take<float>(longest_ * context.threads().threads());
    for (const Piece& piece : work.pieces) room_floats_ = std::max(room_floats_, code.room_floats(piece.elements()));
    rooms_ = context.scratch().take<float>(room_floats_ * context.threads().threads());
  }

  std::span<std::int32_t> words() const { return words_; }

  // The first round's message: norms, of which the largest counts, and the head.
  std::span<float> measure(Context& context) {
    for_each_piece(work_, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
      const auto values = values_of(thread, piece);
      const kernels::Opened opened = read_values(piece, work_, values);
      head_.note(i, opened);
      const std::span<float> norms = norm_parts_.of(norms_, i);
      if (opened.sum.finite)
        code_.measure(piece, values, norms, room(thread));
      else
        std::ranges::fill(norms, 0.0f);
    });
    head_.write(norms_.subspan(norm_parts_.count()), 1.0f);
    return norms_;
  }

  // What came back of it. False if some worker's values are not finite, or norms are none.
  bool read_norms() {
    head_.read<float>(norms_.subspan(norm_parts_.count()));
    const auto norms = norms_.first(norm_parts_.count());
    const kernels::Scan scan = kernels::scan(norms);
    largest_norm_ = scan.largest;
    for (float& norm : norms) norm = code_.agreed(norm);
    return head_.finite() && scan.finite;
  }

  // Values become levels. Keeps this worker's own, where they are wanted again.
  void encode(Context& context) {
    for_each_piece(work_, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
      const auto values = values_of(thread, piece);
      read_values(piece, work_, values);
      const auto words = word_parts_.of(words_, i);
      std::ranges::fill(words, 0);
      code_.to_levels(piece, values, norms_of(i), {fields_, words}, room(thread));
      if (!own_words_.empty()) std::ranges::copy(words, word_parts_.of(own_words_, i).begin());
    });
  }

  // Whether all means can be stored.
  bool means_fit(Context& context) const {
    if (fits(work_, code_.largest_mean(largest_norm_))) return true;
    return all_pieces(context, work_, [&](std::size_t i, std::size_t thread) {
      const auto mean = values_of(thread, work_.pieces[i]);
      decode(words_, i, 1.0f / static_cast<float>(context.world_size()), false, mean, thread);
      return holds_mean(work_, mean);
    });
  }

  void commit_means(Context& context) const {
    const CommitRooms rooms(work_, context);
    for_each_piece(work_, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
      if (head_.is_skipped(i)) return skip(piece);
      const CommitRoom room = rooms.read(work_, i, thread);
      if (!room.left.empty()) decode(own_words_, i, 1, true, room.left, thread);
      decode(words_, i, 1.0f / static_cast<float>(context.world_size()), false, room.mean, thread);
      commit(work_, i, room);
    });
  }

 private:
  std::span<float> values_of(std::size_t thread, const Piece& piece) const { return values_.subspan(thread * longest_, piece.elements()); }
  std::span<float> room(std::size_t thread) const { return rooms_.subspan(thread * room_floats_, room_floats_); }
  std::span<const float> norms_of(std::size_t piece) const { return norm_parts_.of(norms_, piece); }

  void decode(std::span<std::int32_t> words, std::size_t i, float weight, bool subtract, std::span<float> values,
              std::size_t thread) const {
    code_.from_levels(work_.pieces[i], {fields_, word_parts_.of(words, i)}, norms_of(i), weight, subtract, values, room(thread));
  }

  const SummedCode& code_;
  const Work& work_;
  LevelFields fields_;
  Head head_;
  PieceParts word_parts_, norm_parts_;
  std::size_t longest_, room_floats_ = 0;
  std::span<std::int32_t> words_, own_words_;
  std::span<float> norms_;  // then the head's numbers
  float largest_norm_ = 0;
  std::span<float> values_, rooms_;  // for a piece in each thread
};

}  // namespace

Exchange sum_levels(const SummedCode& code, Work& work, Context& context) {
  if (work.elements == 0) co_return;
  Sums sums(code, work, context);
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
