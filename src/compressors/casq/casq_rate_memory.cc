#include "compressors/casq/casq_rate_memory.h"

#include <algorithm>
#include <cmath>

#include "core/bytes.h"
#include "kernels/level_planes.h"
#include "thinwire/errors.h"

namespace thinwire::casq {
namespace {

constexpr std::uint8_t kVersion = 1;
constexpr double kForgetting = 0.8;               // of what is owed, a step
constexpr double kMostOwed = 0.5;                 // of a step's bits are spent on what is owed, or saved
constexpr double kLeastSlope = 0.1, kMostSlope = 8;
constexpr double kMostStride = 4;                 // octaves of the step at once

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

// What parameters that share a step have taken, and would take at another one: as a power of the step.
class Taken {
 public:
  // scale: of the chunks' steps to the common one.
  void count(std::span<const ChunkRecord> chunks, double scale, double rate) {
    for (const ChunkRecord& chunk : chunks) {
      if (!counts(chunk)) continue;
      wanted_ += rate * double{chunk.elements} - double{chunk.other_bits};
      run_ += double{chunk.run_bits};
      coarser_ += double{chunk.run_bits_coarser};
      octaves_ += std::log2(double{chunk.step} / scale) * double{chunk.code_bits};
      bits_ += double{chunk.code_bits};
    }
  }
  bool tells() const { return bits_ > 0 && wanted_ > 0; }
  double wanted() const { return wanted_; }
  double slope() const {
    if (!(run_ > 0)) return 1;
    const double slope = coarser_ > 0 ? std::log2(run_ / coarser_) / std::log2(double{kCoarser}) : kMostSlope;
    return std::clamp(slope, kLeastSlope, kMostSlope);
  }
  // The common step's logarithm, on average over all bits.
  double octave() const { return octaves_ / bits_; }
  double bits_at_octave(std::span<const ChunkRecord> chunks, double scale) const {
    double bits = 0;
    for (const ChunkRecord& chunk : chunks)
      if (counts(chunk)) {
        const double away = std::log2(double{chunk.step} / scale) - octave();
        bits += double{chunk.code_bits} * std::exp2(slope() * std::clamp(away, -kMostStride, kMostStride));
      }
    return bits;
  }

 private:
  double wanted_ = 0, run_ = 0, coarser_ = 0, octaves_ = 0, bits_ = 0;
};

void plan_pass(std::span<CompressorMemory* const> memories, Pass pass, double rate, double weight) {
  const auto memory_of = [](CompressorMemory* memory) -> CasqRateMemory& { return static_cast<CasqRateMemory&>(*memory); };
  Taken taken;
  double bits = 0, owed = 0;
  for (CompressorMemory* memory : memories) {
    const auto chunks = memory_of(memory).committed(pass);
    taken.count(chunks, scale_of(chunks, weight), rate);
    owed += memory_of(memory).owed(pass);
  }
  for (CompressorMemory* memory : memories) {
    const auto chunks = memory_of(memory).committed(pass);
    memory_of(memory).plan(pass) = {};
    if (taken.tells()) bits += taken.bits_at_octave(chunks, scale_of(chunks, weight));
  }
  if (!taken.tells()) return;
  const double wanted = taken.wanted() + std::clamp(owed, -kMostOwed * taken.wanted(), kMostOwed * taken.wanted());
  const double stride = std::clamp(std::log2(bits / wanted) / taken.slope(), -kMostStride, kMostStride);
  for (CompressorMemory* memory : memories) {
    const double step = std::exp2(taken.octave() + stride) * scale_of(memory_of(memory).committed(pass), weight);
    memory_of(memory).plan(pass) = {static_cast<float>(std::clamp(step, double{kernels::kLeastStep}, double{kernels::kLargestStep})),
                                    static_cast<float>(taken.slope())};
  }
}

bool is_legal(const ChunkRecord& chunk) {
  const bool step = chunk.step == 0 || (chunk.step >= kernels::kLeastStep && chunk.step <= kernels::kLargestStep);
  const auto is_figure = [](float value, double most) { return value >= 0 && double{value} <= most; };
  constexpr double kMostBits = 8.0 * 8 * kChunkElements;
  return step && is_figure(chunk.elements, kChunkElements) && is_figure(chunk.code_bits, kMostBits) && is_figure(chunk.other_bits, kMostBits) &&
         is_figure(chunk.run_bits, kMostBits) && is_figure(chunk.run_bits_coarser, kMostBits) && is_figure(chunk.mean_square, 3.5e38) &&
         chunk.foreseen <= 8 * kChunkElements && chunk.age <= 1;
}

}  // namespace

CasqRateMemory::CasqRateMemory(std::array<double, 2> rates, std::uint64_t elements)
    : rates_(rates), count_((elements + kChunkElements - 1) / kChunkElements) {
  committed_.chunks.resize(2 * count_);
  working_ = committed_;
}

std::span<const ChunkRecord> CasqRateMemory::committed(Pass pass) const {
  return std::span(committed_.chunks).subspan(pass == Pass::kSecond ? count_ : 0, count_);
}

void CasqRateMemory::begin_step() {
  working_ = committed_;
  for (ChunkRecord& chunk : working_.chunks) chunk.age = 1;
}

void CasqRateMemory::commit_step() {
  committed_ = working_;
  for (std::size_t pass = 0; pass < 2; ++pass) {
    double left = kForgetting * double{committed_.owed[pass]};
    for (const ChunkRecord& chunk : committed(static_cast<Pass>(pass)))
      if (counts(chunk)) left += rates_[pass] * double{chunk.elements} - double{chunk.code_bits} - double{chunk.other_bits};
    committed_.owed[pass] = static_cast<float>(left);
  }
}

std::vector<std::byte> CasqRateMemory::save() const {
  std::vector<std::byte> saved(sizeof(kVersion) + sizeof(committed_.owed) + committed_.chunks.size() * sizeof(ChunkRecord));
  ByteWriter writer(saved);
  writer.write(kVersion);
  writer.write(committed_.owed);
  writer.write_all(std::span<const ChunkRecord>(committed_.chunks));
  return saved;
}

void CasqRateMemory::load(std::span<const std::byte> saved) {
  ByteReader reader(saved, "a saved state of casq:rate=");
  reader.expect_version(kVersion);
  State loaded;
  loaded.owed = reader.read<std::array<float, 2>>();
  loaded.chunks.resize(2 * count_);
  reader.read_into(std::span<ChunkRecord>(loaded.chunks));
  reader.expect_end();
  if (!std::ranges::all_of(loaded.owed, [](float owed) { return std::isfinite(owed); }) || !std::ranges::all_of(loaded.chunks, is_legal))
    throw PayloadError("a saved state of casq:rate= holds figures that no step leaves behind");
  committed_ = std::move(loaded);
}

void plan_rates(std::span<CompressorMemory* const> memories, std::array<double, 2> rates, double weight) {
  plan_pass(memories, Pass::kFirst, rates[0], weight);
  plan_pass(memories, Pass::kSecond, rates[1], weight);
}

}  // namespace thinwire::casq
