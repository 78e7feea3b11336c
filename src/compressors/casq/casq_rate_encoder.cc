// How casq:rate= encodes: at which step, and so that messages are as long as foreseen (casq_rate.h, 1 to 3).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "compressors/casq/casq_rate.h"
#include "compressors/casq/rate_chunk.h"
#include "compressors/casq/rate_control.h"
#include "compressors/casq/rate_step.h"
#include "compressors/shared/message.h"
#include "core/bytes.h"
#include "kernels/statistics.h"

namespace thinwire {
namespace {

using casq::ChunkEncoder, casq::ChunkRecord, casq::StepCode, casq::memory_of;

// A message that takes a quarter more or less than foreseen, and a quarter of the rate beyond that, is encoded again where it does.
constexpr double kMissed = 0.25;
constexpr float kFinest = 0x1p-8F;  // then, as a multiple of the planned step
// A message is sampled by runs of each piece, at least two of a chunk of 32,768: of so many values in a parameter's first step, and later of as many as take so many bits.
constexpr std::size_t kFirstSample = 131072, kLeastRuns = 2, kMostRuns = 16;
constexpr double kSampleBits = 16384;
// Messages that are too long are made to fit. Where bits move from one message to another, so that it is meant to be more than a quarter longer than
// foreseen, it grows by a fifth a step, in another round. Steps of some pieces become larger, at most twice as large a time, so that somewhat
// more goes than is too much; and more at the next time, if that was not enough.
constexpr double kMeant = 1.25, kMostGrowth = 1.2, kMostLarger = 2, kShortened = 1.25, kMostMore = 4, kFewBytes = 8;
constexpr int kMostFits = 3;
// How much of what the last sample was wrong by is allowed for at once: most of it is chance.
constexpr double kCorrected = 0.25;

}  // namespace

// Encodes the pieces of one message, or of those to all owners.
class CasqRate::MessageEncoder {
 public:
  MessageEncoder(const CasqRate& codec, const Encoding& encoding, Context& context)
      : codec_(codec), encoding_(encoding), context_(context), rooms_(codec, encoding.pieces, 1, context),
        steps_(context.scratch().take<float>(count())), foretold_(context.scratch().take<double>(count())),
        told_(context.scratch().take<casq::SampledStep>(count())) {
    for (std::size_t i = 0; i < count(); ++i) {
      told_[i] = {};
      encoding.lengths[i] = 0;
      longest_ = std::max<std::size_t>(longest_, piece(i).elements());
      if (!is_wanted(i)) continue;
      foretell(i);
      elements_ += piece(i).elements();
    }
    past_caches_ = encoding_.pass == Pass::kFirst && elements_ >= kPastCaches;
    values_ = context.scratch().take<float>(longest_ * context.threads().threads());
  }

  // False if some value is not finite, or the source refuses.
  bool run() {
    choose_first_steps();
    adjust_steps();
    if (!for_pieces([this](std::size_t i) { return is_wanted(i); }, [this](std::size_t i, std::size_t thread) { return encode_first(i, thread); }) || !mend())
      return false;
    learn();
    return fit();
  }

 private:
  std::size_t count() const { return encoding_.pieces.size(); }
  const Piece& piece(std::size_t i) const { return *encoding_.pieces[i]; }
  bool is_wanted(std::size_t i) const { return !encoding_.room[i].empty(); }
  const casq::RatePlan& plan(std::size_t i) const { return memory_of(piece(i)).plan(encoding_.pass); }
  ChunkRecord& record(std::size_t i) const { return memory_of(piece(i)).record(piece(i), encoding_.pass); }
  double share(std::size_t i) const { return codec_.rate(encoding_.pass) * static_cast<double>(piece(i).elements()); }
  double taken(std::size_t i) const { return 8 * static_cast<double>(encoding_.lengths[i]); }

  // Its step, and the bits that it should take there.
  void foretell(std::size_t i) {
    const ChunkRecord& last = record(i);
    steps_[i] = plan(i).step;
    foretold_[i] = share(i);
    if (plan(i).step > 0 && last.step > 0)
      foretold_[i] = plan(i).share * casq::foretold_bits(last, double{plan(i).step}, double{plan(i).slope}) *
                     static_cast<double>(piece(i).elements()) / double{last.elements};
  }

  // Calls body(i, thread) for the pieces that are meant, by threads. False if body says so.
  template <class IsMeant, class Body>
  bool for_pieces(const IsMeant& is_meant, const Body& body) const {
    std::atomic<bool> good = true;
    context_.threads().for_each(count(), elements_, [&](std::size_t i, std::size_t thread) {
      if (!is_meant(i) || !good.load(std::memory_order_relaxed)) return;
      if (!body(i, thread)) good.store(false, std::memory_order_relaxed);
    });
    return good;
  }

  // Calls body(values, magnitudes) with a piece's values. False if some is not finite, or body says so.
  template <class Body>
  bool with_values(std::size_t i, std::size_t thread, const Body& body) const {
    const auto values = values_.subspan(thread * longest_, piece(i).elements());
    const kernels::Magnitudes magnitudes = encoding_.source.read(i, values, thread);
    return magnitudes.finite && body(values, magnitudes);
  }
  template <class IsMeant, class Body>
  bool for_each(const IsMeant& is_meant, const Body& body) const {
    return for_pieces(is_meant, [&](std::size_t i, std::size_t thread) {
      return with_values(i, thread, [&](auto values, const auto& magnitudes) { return body(i, values, magnitudes, thread); });
    });
  }

  // Values of the pieces that are meant, in runs of each that make up about `size` in all, and divided by the piece's step.
  template <class IsMeant>
  std::span<float> read_sample(std::size_t size, const IsMeant& is_meant) const {
    std::size_t pieces = 1;
    for (std::size_t i = 0; i < count(); ++i) pieces += is_meant(i) ? 1 : 0;
    const std::size_t least = std::max<std::size_t>(kLeastRuns * longest_ / kChunkElements, 1);
    const std::size_t runs = std::clamp(size / casq::kSampleRun / pieces, least, kMostRuns);
    const PieceParts parts(count(), context_, [&](std::size_t i) { return is_meant(i) ? casq::sample_size(piece(i).elements(), runs) : 0; });
    const auto sample = context_.scratch().take<float>(parts.count());
    context_.threads().for_each(count(), sample.size(), [&](std::size_t i, std::size_t) {
      const auto here = parts.of(sample, i);
      if (here.empty()) return;
      casq::for_each_run(piece(i).elements(), runs, [&](std::size_t first, std::size_t begin, std::size_t length) {
        encoding_.source.read_part(i, first, here.subspan(begin, length));
      });
      kernels::multiply(here, 1 / steps_[i]);
    });
    return sample;
  }

  // The steps of the pieces that are meant, all by one factor, at which their sample takes so many bits an entry.
  template <class IsMeant>
  void fit_steps(const IsMeant& is_meant, std::span<const float> sample, double rate, float guess) {
    if (sample.empty() || !kernels::scan(sample).finite) return;  // values that are not finite are found where they are encoded
    const casq::SampledStep factor = casq::choose_step(sample, rate, encoder(0), guess);
    if (!(factor.step > 0)) return;
    for (std::size_t i = 0; i < count(); ++i)
      if (is_meant(i)) {
        steps_[i] = std::clamp(steps_[i] * factor.step, kernels::kLeastStep, kernels::kLargestStep);
        told_[i] = factor;
      }
  }

  // Of pieces of which nothing is known, all have the step at which their sample takes the rate.
  void choose_first_steps() {
    const auto is_unknown = [this](std::size_t i) { return is_wanted(i) && !(plan(i).step > 0); };
    for (std::size_t i = 0; i < count(); ++i)
      if (is_unknown(i)) steps_[i] = 1;
    fit_steps(is_unknown, read_sample(kFirstSample, is_unknown), codec_.rate(encoding_.pass), 0);
    for (std::size_t i = 0; i < count(); ++i)
      if (is_unknown(i) && !(told_[i].step > 0)) steps_[i] = kernels::kLargestStep;  // what the sample has missed is mended
  }

  // Of the others, values may have grown or shrunk since their steps were foretold: the message is to take what was foretold.
  void adjust_steps() {
    const auto is_known = [this](std::size_t i) { return is_wanted(i) && plan(i).step > 0; };
    double wanted = 0, foreseen = 0, elements = 0;
    for (std::size_t i = 0; i < count(); ++i) {
      if (!is_known(i)) continue;
      wanted += foretold_[i];
      foreseen += 8 * static_cast<double>(codec_.usual_bytes(piece(i), encoding_.pass));
      elements += double{record(i).correction} * static_cast<double>(piece(i).elements());
    }
    if (!(wanted > 0)) return;
    const auto sample = read_sample(static_cast<std::size_t>(kSampleBits / codec_.rate(encoding_.pass)), is_known);
    fit_steps(is_known, sample, std::min(wanted, kMostGrowth * foreseen) / elements, 1);
  }

  // For the first time: values are opened on the way, where they lie in memory.
  bool encode_first(std::size_t i, std::size_t thread) const {
    const auto unopened = encoding_.source.unopened(i);
    if (!unopened || step(i) <= kernels::kLeastStep)
      return with_values(i, thread, [&](auto values, const auto& magnitudes) { return encode_piece(i, values, magnitudes, thread); });
    kernels::Opened opened;
    const auto code = encoding_.room[i].subspan(sizeof(StepCode));
    const std::size_t bytes = encoder(thread).open_and_encode(*unopened, step(i), code, left(i), past_caches_, opened).bytes;
    encoding_.source.note(i, opened);
    if (!opened.sum.finite) return false;
    set_length(i, bytes);
    return finish_piece(i, opened.sum, thread);
  }

  ChunkEncoder& encoder(std::size_t thread) const { return casq::coder_in<ChunkEncoder>(rooms_.of(thread)); }
  // As it travels.
  float step(std::size_t i) const { return casq::step_of(casq::coded_step(steps_[i])); }
  std::span<float> left(std::size_t i) const { return encoding_.left.empty() ? std::span<float>() : encoding_.left[i]; }

  bool encode_piece(std::size_t i, std::span<const float> values, const kernels::Magnitudes& magnitudes, std::size_t thread) const {
    if (magnitudes.largest > 0) {
      write(i, values, thread);
    } else {
      encoding_.lengths[i] = 0;
      std::ranges::fill(left(i), 0.0f);
    }
    return finish_piece(i, magnitudes, thread);
  }

  bool finish_piece(std::size_t i, const kernels::Magnitudes& magnitudes, std::size_t thread) const {
    ChunkRecord& now = record(i);
    const auto n = static_cast<float>(piece(i).elements());
    now.step = step(i);
    now.elements = n;
    now.code_bits = static_cast<float>(taken(i));
    now.mean_square = std::isfinite(magnitudes.sum_squares) ? magnitudes.sum_squares / n : 0;
    now.age = 0;
    now.slope = static_cast<float>(told_[i].slope);
    return encoding_.source.encoded(i, encoding_.room[i].first(encoding_.lengths[i]), thread);
  }

  void write(std::size_t i, std::span<const float> values, std::size_t thread) const {
    const auto code = encoding_.room[i].subspan(sizeof(StepCode));
    // Values that no step is small enough for.
    if (step(i) <= kernels::kLeastStep) {
      std::ranges::fill(left(i), 0.0f);
      return set_length(i, casq::write_exact({values}, code));
    }
    set_length(i, encoder(thread).encode(values, step(i), code, left(i), past_caches_).bytes);
  }

  // Of a chunk's code, which is there; its step goes before it.
  void set_length(std::size_t i, std::size_t bytes) const {
    ByteWriter(encoding_.room[i]).write(casq::coded_step(steps_[i]));
    const bool is_zeros = casq::is_zeros(encoding_.room[i].subspan(sizeof(StepCode), bytes));
    encoding_.lengths[i] = is_zeros ? 0 : sizeof(StepCode) + bytes;
  }

  // Encodes again what took far more, or far less, than foretold, if the whole message does: the sample may have missed it.
  bool mend() {
    double all = 0, foretold = 0;
    for (std::size_t i = 0; i < count(); ++i)
      if (is_wanted(i)) {
        all += taken(i);
        foretold += foretold_[i];
      }
    const double slack = kMissed * codec_.rate(encoding_.pass) * static_cast<double>(elements_);
    const bool many = all > (1 + kMissed) * foretold + slack, few = all < (1 - kMissed) * foretold - slack;
    if (!many && !few) return true;
    const auto samples = context_.scratch().take<float>(kMostRuns * casq::kSampleRun * context_.threads().threads());
    const auto is_off = [&](std::size_t i) {
      const double spare = kMissed * share(i);
      return is_wanted(i) && (many ? taken(i) > (1 + kMissed) * foretold_[i] + spare : taken(i) < (1 - kMissed) * foretold_[i] - spare);
    };
    return for_each(is_off, [&](std::size_t i, auto values, const auto& magnitudes, std::size_t thread) {
      const auto sample = samples.subspan(thread * kMostRuns * casq::kSampleRun, casq::sample_size(values.size(), kMostRuns));
      casq::copy_sample(values, kMostRuns, sample);
      const double rate = std::max(foretold_[i], kMissed * share(i)) / static_cast<double>(values.size());
      told_[i] = casq::choose_step(sample, rate, encoder(thread), steps_[i]);
      const float step = told_[i].step;
      // Values of which few differ, as means of low rates are, may not tell as much as was foretold at any step.
      const float least = std::max(kFinest * steps_[i], kernels::kLeastStep);
      steps_[i] = step > 0 ? std::max(step, least) : std::clamp(magnitudes.largest / 64, kernels::kLeastStep, kernels::kLargestStep);
      return encode_piece(i, values, magnitudes, thread);
    });
  }

  // Encodes pieces of messages again, with larger steps, that chance alone has made longer than foreseen.
  bool fit() {
    const auto steps = context_.scratch().take<float>(count());             // to encode with again; 0: not again
    const auto are_stiff = context_.scratch().take<std::uint8_t>(count());  // next to nothing would be left of them, as of a constant
    std::ranges::fill(are_stiff, std::uint8_t{0});
    const auto fittings = context_.scratch().take<Fitting>(encoding_.messages.size());
    std::ranges::fill(fittings, Fitting{});
    for (int trial = 0; trial < kMostFits; ++trial) {
      std::ranges::fill(steps, 0.0f);
      for (std::size_t m = 0; m < fittings.size(); ++m) shorten(encoding_.messages[m], fittings[m], are_stiff, steps);
      if (std::ranges::all_of(steps, [](float step) { return step == 0; })) return true;
      const auto is_chosen = [&](std::size_t i) { return steps[i] > 0; };
      if (!for_each(is_chosen, [&](std::size_t i, auto values, const auto& magnitudes, std::size_t thread) {
            const std::size_t before = encoding_.lengths[i];
            const ChunkRecord meant = record(i);  // tells the next step what it takes at the common step
            const float step_before = std::exchange(steps_[i], steps[i]);
            bool good = encode_piece(i, values, magnitudes, thread);
            if (2 * encoding_.lengths[i] < before) {
              are_stiff[i] = 1;
              steps_[i] = step_before;
              good = good && encode_piece(i, values, magnitudes, thread);
            }
            record(i) = meant;
            return good;
          }))
        return false;
    }
    return true;
  }

  // Of a message, so far.
  struct Fitting {
    double taken = 0, beyond = 0;  // bytes before it was last shortened, and those of them that did not fit
    double more = kShortened;      // has to go than is beyond, as pieces with much in them become shorter by less than is foretold
  };

  // Chooses steps for its longest pieces, as few as can make it fit.
  void shorten(const MessageCodes& message, Fitting& fitting, std::span<const std::uint8_t> are_stiff, std::span<float> steps) const {
    double taken = 0, foretold = 0;
    for (std::size_t i = message.begin; i < message.end; ++i)
      if (is_wanted(i)) {
        taken += static_cast<double>(encoding_.lengths[i]);
        foretold += foretold_[i] / 8;
      }
    const auto usual = static_cast<double>(message.usual);
    const double most = foretold > kMeant * usual ? kMostGrowth * usual : usual;
    if (taken <= most) return;
    if (fitting.beyond > 0) fitting.more *= std::clamp(fitting.beyond / std::max(fitting.taken - taken, 1.0), 1.0, kMostMore);
    fitting.taken = taken;
    fitting.beyond = taken - most;
    for (double beyond = fitting.more * fitting.beyond + kFewBytes; beyond > 0;) {
      const auto longest = longest_of(message, are_stiff, steps);
      if (longest == message.end) return;
      const auto bytes = static_cast<double>(encoding_.lengths[longest]), left = bytes - std::min(beyond, kMissed * bytes);
      const double larger = std::min(std::pow(bytes / left, 1 / double{record(longest).slope}), kMostLarger);
      steps[longest] = std::min(static_cast<float>(larger) * steps_[longest], kernels::kLargestStep);
      beyond -= bytes - left;
    }
  }

  // Of the message's pieces that can be made shorter and have no step yet; its end if that has no code.
  std::size_t longest_of(const MessageCodes& message, std::span<const std::uint8_t> are_stiff, std::span<const float> steps) const {
    std::size_t longest = message.end, bytes = 0;
    for (std::size_t i = message.begin; i < message.end; ++i)
      if (is_wanted(i) && are_stiff[i] == 0 && steps[i] == 0 && encoding_.lengths[i] > bytes) {
        longest = i;
        bytes = encoding_.lengths[i];
      }
    return longest;
  }

  // What such samples leave out of messages, or count too often.
  void learn() const {
    double took = 0, told = 0;
    for (std::size_t i = 0; i < count(); ++i) {
      if (!is_wanted(i) || !(told_[i].rate > 0)) continue;
      took += taken(i);
      told += told_[i].rate * static_cast<double>(piece(i).elements());
    }
    if (!(took > 0 && told > 0)) return;
    const double found = std::clamp(took / told, 1 / casq::kMostCorrection, casq::kMostCorrection);
    for (std::size_t i = 0; i < count(); ++i)
      if (is_wanted(i)) {
        const double last{record(i).correction};
        record(i).correction = static_cast<float>(last * std::pow(found / last, kCorrected));
      }
  }

  const CasqRate& codec_;
  const Encoding& encoding_;
  Context& context_;
  CodecRooms rooms_;
  std::span<float> steps_;
  std::span<double> foretold_;
  std::span<casq::SampledStep> told_;  // of the sample that a piece had a part in
  std::size_t longest_ = 0;
  std::uint64_t elements_ = 0;  // of the pieces that are wanted
  bool past_caches_ = false;    // what the first encoding leaves is read in the next step, what the second one leaves at once
  std::span<float> values_;  // a piece's, for each thread
};

bool CasqRate::encode(const Encoding& encoding, Context& context) const { return MessageEncoder(*this, encoding, context).run(); }

}  // namespace thinwire
