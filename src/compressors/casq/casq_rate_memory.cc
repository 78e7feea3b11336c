#include "compressors/casq/casq_rate_memory.h"

#include <algorithm>
#include <cmath>

#include "compressors/casq/rate_control.h"
#include "core/bytes.h"
#include "kernels/level_planes.h"
#include "thinwire/errors.h"

namespace thinwire::casq {
namespace {

constexpr std::uint8_t kVersion = 4;
// Codes of the longest message are to be so much shorter than what messages are foreseen to take: what is longer costs a round.
constexpr double kMargin = 1.0 / 64;
constexpr double kLeastAim = 0.25;   // of the rate
constexpr double kCorrected = 0.25;  // of what the longest of one step was too long by
// Of what earlier steps have sent beyond the rate a step saves half, but no more than a twelfth of the rate; what is more than that part of
// the rate is forgotten, since it was a change of gradients.
constexpr double kSaved = 0.5, kMostSaved = 1.0 / 12, kMostOwed = 0.3;
constexpr double kMostStride = 8;    // octaves of the step that bits are foretold over
constexpr double kNearEnough = 0.01;
constexpr int kMostTrials = 8;

// Of the parameter's last committed step; others may be of chunks that other workers own by now.
bool counts(const ChunkRecord& chunk) { return chunk.step > 0 && chunk.age == 0; }

// A parameter's step, as a multiple of the common one.
double scale_of(std::span<const ChunkRecord> chunks, double weight) {
  double squares = 0, elements = 0;
  for (const ChunkRecord& chunk : chunks) {
    if (!counts(chunk)) continue;
    squares += double{chunk.mean_square} * double{chunk.elements};
    elements += double{chunk.elements};
  }
  return weight > 0 && squares > 0 ? std::pow(squares / elements, weight / 2) : 1;
}

CasqRateMemory& rate_memory(CompressorMemory* memory) { return static_cast<CasqRateMemory&>(*memory); }

// What all workers know alike of a step's messages, in bits.
class Messages {
 public:
  explicit Messages(double rate) : rate_(rate) {}
  void add(const ChunkRecord& chunk, double elements) {
    at_rate_ += rate_ * elements;
    aimed_ += double{chunk.aimed} * elements;
    owed_ += double{chunk.owed} * elements;
    longest_ += 8.0 * chunk.longest * elements / double{kChunkElements};
  }

  // Bits an entry that are owed after them.
  double owed() const { return are_known() ? std::clamp((owed_ + longest_) / at_rate_ - 1, 0.0, kMostOwed) * rate_ : 0; }
  // The part of the rate that the next ones are to take.
  double due() const { return part_due(owed() / rate_); }
  // How much longer they may be than the longest were, to take that; 0: nothing is known.
  double usual() const { return are_known() ? due() * at_rate_ / longest_ : 0; }
  // Bits an entry to aim at where nothing is owed. The longest message is longer than that; it is to fit.
  double aim() const {
    if (!are_known()) return rate_;
    const double fitting = (1 - kMargin) * part_due(owed_ / at_rate_) * at_rate_ / longest_;
    return rate_ * std::clamp(aimed_ / at_rate_ * std::pow(fitting, kCorrected), kLeastAim, 1.0);
  }

 private:
  bool are_known() const { return longest_ > 0; }
  static double part_due(double owed) { return 1 - std::min(kSaved * owed, kMostSaved); }

  double rate_, at_rate_ = 0, aimed_ = 0, owed_ = 0, longest_ = 0;
};

Messages messages_of(std::span<CompressorMemory* const> memories, Pass pass, double rate) {
  Messages all(rate);
  for (CompressorMemory* memory : memories) {
    const auto chunks = rate_memory(memory).committed(pass);
    for (std::size_t c = 0; c < chunks.size(); ++c)
      if (chunks[c].longest > 0) all.add(chunks[c], static_cast<double>(rate_memory(memory).grid().length(c)));
  }
  return all;
}

// What parameters that share a step have taken, from which follows the step at which they will take what is wanted.
class Taken {
 public:
  Taken(std::span<CompressorMemory* const> memories, Pass pass, double weight) : memories_(memories), pass_(pass), weight_(weight) {
    for_each([&](const ChunkRecord& chunk, double scale) {
      elements_ += double{chunk.elements};
      slopes_ += double{chunk.slope} * double{chunk.code_bits};
      octaves_ += std::log2(double{chunk.step} / scale) * double{chunk.code_bits};
      bits_ += double{chunk.code_bits};
    });
  }

  bool tells() const { return bits_ > 0; }
  double slope() const { return bits_ > 0 ? slopes_ / bits_ : 1; }

  double elements() const { return elements_; }
  // The common step for so many bits.
  double step_for(double wanted) const {
    const double last = octaves_ / bits_;
    double octave = last;
    for (int i = 0; i < kMostTrials; ++i) {
      const double left = std::log2(bits_at(std::exp2(octave)) / wanted);
      if (std::fabs(left) < kNearEnough) break;
      octave = std::clamp(octave + left / slope(), last - kMostStride, last + kMostStride);
    }
    return std::exp2(octave);
  }
  double bits_at(double step) const {
    double bits = 0;
    const double slope_here = slope();
    for_each([&](const ChunkRecord& chunk, double scale) { bits += foretold_bits(chunk, step * scale, slope_here); });
    return bits;
  }

 private:
  // Calls body(chunk, scale) for all chunks that count.
  template <class Body>
  void for_each(const Body& body) const {
    for (CompressorMemory* memory : memories_) {
      const auto chunks = rate_memory(memory).committed(pass_);
      const double scale = scale_of(chunks, weight_);
      for (const ChunkRecord& chunk : chunks)
        if (counts(chunk)) body(chunk, scale);
    }
  }
  std::span<CompressorMemory* const> memories_;
  Pass pass_;
  double weight_, elements_ = 0, slopes_ = 0, octaves_ = 0, bits_ = 0;
};

void plan_pass(std::span<CompressorMemory* const> memories, Pass pass, double rate, double weight) {
  const Taken taken(memories, pass, weight);
  const Messages messages = messages_of(memories, pass, rate);
  const double aim = messages.aim(), wanted = messages.due() * aim * taken.elements();
  const double step = taken.tells() ? taken.step_for(wanted) : 0;
  for (CompressorMemory* memory : memories) {
    RatePlan& plan = rate_memory(memory).plan(pass);
    plan = {.aimed = static_cast<float>(aim), .owed = static_cast<float>(messages.owed()), .usual = messages.usual()};
    if (!taken.tells()) continue;
    const double own = step * scale_of(rate_memory(memory).committed(pass), weight);
    plan.step = static_cast<float>(std::clamp(own, double{kernels::kLeastStep}, double{kernels::kLargestStep}));
    plan.slope = static_cast<float>(taken.slope());
    plan.share = std::min(1.0, wanted / taken.bits_at(step));
  }
}

bool is_legal(const ChunkRecord& chunk) {
  const bool step = chunk.step == 0 || (chunk.step >= kernels::kLeastStep && chunk.step <= kernels::kLargestStep);
  const auto is_figure = [](float value, double most) { return value >= 0 && double{value} <= most; };
  constexpr double kMostBits = 8.0 * 8 * kChunkElements, kMostRate = 8;
  return step && (chunk.step == 0 || chunk.elements > 0) && is_figure(chunk.elements, kChunkElements) && is_figure(chunk.code_bits, kMostBits) &&
         chunk.correction > 0 && is_figure(chunk.correction, kMostCorrection) && chunk.slope > 0 && is_figure(chunk.slope, kMostSlope) &&
         is_figure(chunk.mean_square, 3.5e38) && is_figure(chunk.aimed, kMostRate) && is_figure(chunk.owed, kMostRate) &&
         chunk.longest <= kMostLongest && chunk.age <= 1;
}

}  // namespace

CasqRateMemory::CasqRateMemory(std::uint64_t elements, std::uint64_t chunk)
    : grid_{elements, chunk}, committed_(2 * grid_.chunks()), working_(committed_) {}

double foretold_bits(const ChunkRecord& chunk, double step, double slope) {
  return double{chunk.code_bits} * std::exp2(slope * std::clamp(std::log2(double{chunk.step} / step), -kMostStride, kMostStride));
}

std::span<const ChunkRecord> CasqRateMemory::committed(Pass pass) const {
  return std::span(committed_).subspan(pass == Pass::kSecond ? grid_.chunks() : 0, grid_.chunks());
}

void CasqRateMemory::begin_step() {
  working_ = committed_;
  for (ChunkRecord& chunk : working_) chunk.age = 1;
}

std::vector<std::byte> CasqRateMemory::save() const {
  std::vector<std::byte> saved(sizeof(kVersion) + ChunkGrid::kSavedBytes + committed_.size() * sizeof(ChunkRecord));
  ByteWriter writer(saved);
  writer.write(kVersion);
  grid_.write(writer);
  writer.write_all(std::span<const ChunkRecord>(committed_));
  return saved;
}

void CasqRateMemory::load(std::span<const std::byte> saved) {
  ByteReader reader(saved, "a saved state of casq:rate=");
  reader.expect_version(kVersion);
  const ChunkGrid saved_grid = grid_.read(reader);
  std::vector<ChunkRecord> loaded(2 * saved_grid.chunks());
  reader.read_into(std::span<ChunkRecord>(loaded));
  reader.expect_end();
  if (!std::ranges::all_of(loaded, is_legal)) throw PayloadError("a saved state of casq:rate= holds figures that no step leaves behind");
  for (std::size_t place = 0; place < committed_.size(); ++place) {
    const std::uint64_t pass = place / grid_.chunks(), chunk = place % grid_.chunks(), saved_chunk = saved_grid.at(grid_.first(chunk));
    ChunkRecord record = loaded[pass * saved_grid.chunks() + saved_chunk];
    const double share = static_cast<double>(grid_.length(chunk)) / static_cast<double>(saved_grid.length(saved_chunk));
    record.elements = static_cast<float>(share * double{record.elements});
    record.code_bits = static_cast<float>(share * double{record.code_bits});
    committed_[place] = record;
  }
}

void plan_rates(std::span<CompressorMemory* const> memories, std::array<double, 2> rates, double weight) {
  plan_pass(memories, Pass::kFirst, rates[0], weight);
  plan_pass(memories, Pass::kSecond, rates[1], weight);
}

}  // namespace thinwire::casq
