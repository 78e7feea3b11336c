#include "compressors/casq.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/bytes.h"
#include "kernels/codes.h"
#include "kernels/statistics.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

using kernels::SignedHistogram;

constexpr int kLargestClusters = 1 << kernels::kMaxClusterBits;
constexpr std::size_t kCounts = 2 * SignedHistogram::kBins;  // of one parameter's histogram
constexpr std::uint64_t kTrainingChunks = 32;                // a parameter is trained on a million values at most
using Table = std::array<float, kLargestClusters>;

// Normalised, ascending thresholds of every chunk of a parameter, and of the mean of every chunk that this worker owns:
// trained by all workers together, they follow what they divide by one step of Lloyd's algorithm at every encoding. Chunks'
// thresholds are separate memory, so pieces may be encoded side by side.
class Thresholds : public CompressorMemory {
 public:
  Thresholds(std::span<const float> untrained, std::uint64_t elements)
      : per_chunk_(untrained.size()), chunks_((elements + kChunkElements - 1) / kChunkElements) {
    committed_ = for_all_chunks(untrained);
  }

  std::span<float> of_piece(const Piece& piece) {
    const std::uint64_t second = piece.encoding == Piece::Encoding::kSecond ? 1 : 0;
    return std::span(working_).subspan((2 * (piece.first / kChunkElements) + second) * per_chunk_, per_chunk_);
  }

  void begin_step() override { working_ = committed_; }
  void commit_step() override { committed_ = working_; }

  void train(std::span<const std::int32_t> counts, Signs signs) {
    if (std::any_of(counts.begin(), counts.end(), [](std::int32_t count) { return count > 0; }))
      working_ = for_all_chunks(optimal_thresholds(counts, static_cast<int>(per_chunk_) + 1, signs));
  }

  std::vector<std::byte> save() const override {
    std::vector<std::byte> saved(1 + committed_.size() * sizeof(float));
    ByteWriter writer(saved);
    writer.write(kVersion);
    writer.write_all(std::span<const float>(committed_));
    return saved;
  }

  void load(std::span<const std::byte> saved) override {
    ByteReader reader(saved, "a saved state of casq");
    if (const auto version = reader.read<std::uint8_t>(); version != kVersion)
      throw PayloadError("a saved state of casq has version " + std::to_string(version) + "; this thinwire reads version " +
                         std::to_string(kVersion));
    std::vector<float> loaded(committed_.size());
    reader.read_into(std::span<float>(loaded));
    reader.expect_end();
    for (auto rest = std::span<const float>(loaded); !rest.empty(); rest = rest.subspan(per_chunk_))
      check_ascending(rest.first(per_chunk_));
    committed_ = std::move(loaded);
  }

 private:
  static constexpr std::uint8_t kVersion = 2;

  std::vector<float> for_all_chunks(std::span<const float> thresholds) const {
    std::vector<float> all;
    for (std::uint64_t i = 0; i < 2 * chunks_; ++i) all.insert(all.end(), thresholds.begin(), thresholds.end());
    return all;
  }

  static void check_ascending(std::span<const float> thresholds) {
    const bool finite = std::all_of(thresholds.begin(), thresholds.end(), [](float value) { return std::isfinite(value); });
    if (!finite || !std::is_sorted(thresholds.begin(), thresholds.end()))
      throw PayloadError("a saved state of casq holds thresholds that are not finite and ascending");
  }

  std::size_t per_chunk_;
  std::uint64_t chunks_;
  std::vector<float> committed_;  // [chunk][encoding][threshold]
  std::vector<float> working_;    // the same, of the step at hand
};

// One step of Lloyd's algorithm: a threshold moves to the middle of the means beside it, for this chunk's next encoding.
// Beside an empty cluster it stays, and at 0 where signs are apart; so thresholds remain in order.
void follow(const kernels::ClusterSums& sums, std::span<const float> table, float scale, Signs signs, std::span<float> thresholds) {
  for (std::size_t i = 0; i < thresholds.size(); ++i) {
    const bool fixed = signs == Signs::kApart && thresholds[i] == 0;
    if (fixed || sums.count[i] == 0 || sums.count[i + 1] == 0) continue;
    thresholds[i] = 0.5f * (table[i] + table[i + 1]) / scale;
  }
}

// What the first step's clusters are made from if there is nothing to train on: the Laplace distribution, which gradients
// resemble more than any other that needs no parameter.
std::vector<float> laplace_thresholds(int clusters, Signs signs) {
  constexpr double kMass = 1e6;
  std::vector<std::int32_t> counts(kCounts);
  for (int bin = 0; bin < SignedHistogram::kBins; ++bin) {
    const double below = bin == 0 ? 0 : kernels::histogram_lower_edge(bin);
    const double mass = std::exp(-below) - std::exp(-kernels::histogram_lower_edge(bin + 1));
    counts[static_cast<std::size_t>(bin)] = static_cast<std::int32_t>(kMass * mass);
    counts[static_cast<std::size_t>(bin + SignedHistogram::kBins)] = counts[static_cast<std::size_t>(bin)];
  }
  return optimal_thresholds(counts, clusters, signs);
}

float mean_magnitude(const kernels::Magnitudes& magnitudes, std::size_t elements) {
  return elements == 0 ? 0 : magnitudes.sum_abs / static_cast<float>(elements);
}

// What cluster means keep of the values' energy.
double kept_energy(const kernels::ClusterSums& sums) {
  double energy = 0;
  for (std::size_t c = 0; c < kLargestClusters; ++c)
    if (sums.count[c] > 0) energy += static_cast<double>(sums.sum[c]) * static_cast<double>(sums.sum[c]) / sums.count[c];
  return energy;
}

// The least that a cluster for each sign would keep.
double energy_of_signs(const kernels::Magnitudes& magnitudes, std::size_t elements) {
  const auto sum = static_cast<double>(magnitudes.sum_abs);
  return elements == 0 ? 0 : sum * sum / static_cast<double>(elements);
}

// Adds a parameter's values to its histogram, chunks spread evenly where there are many.
void count_values(const ParameterView& parameter, std::span<float> chunk, std::span<std::int32_t> counts) {
  const std::uint64_t chunks = (parameter.elements() + kChunkElements - 1) / kChunkElements;
  const std::uint64_t trained = std::min(chunks, kTrainingChunks);
  for (std::uint64_t i = 0; i < trained; ++i) {
    const std::uint64_t first = i * chunks / trained * kChunkElements;
    const auto values = chunk.first(std::min(kChunkElements, parameter.elements() - first));
    parameter.read(first, values);
    const kernels::Magnitudes magnitudes = kernels::measure(values);
    const float scale = mean_magnitude(magnitudes, values.size());
    const float inverse = 1.0f / scale;
    if (magnitudes.finite && std::isfinite(inverse) && scale > 0) kernels::add_to_histogram(values, inverse, counts);
  }
}

std::uint64_t trained_elements(std::span<const ParameterView* const> parameters) {
  std::uint64_t elements = 0;
  for (const ParameterView* parameter : parameters)
    elements += std::min(parameter->elements(), kTrainingChunks * kChunkElements);
  return elements;
}

// Brings a chunk's values near 1 by a power of two while they are encoded, if their squares or sums could leave the range
// of float, and back at the end.
class InFloatRange {
 public:
  InFloatRange(std::span<float> values, const kernels::Magnitudes& magnitudes) : values_(values), magnitudes_(magnitudes) {
    constexpr float kSmallest = 1e-18f, kLargest = 1e15f;
    if (magnitudes.largest == 0 || (magnitudes.largest >= kSmallest && magnitudes.largest <= kLargest)) return;
    exponent_ = std::clamp(std::ilogb(magnitudes.largest), -126, 126);
    kernels::multiply(values_, std::ldexp(1.0f, -exponent_));
    magnitudes_ = kernels::measure(values_);
  }

  const kernels::Magnitudes& magnitudes() const { return magnitudes_; }

  void undo(std::span<float> table) const {
    if (exponent_ == 0) return;
    kernels::multiply(values_, std::ldexp(1.0f, exponent_));
    kernels::multiply(table, std::ldexp(1.0f, exponent_));
  }

 private:
  std::span<float> values_;
  kernels::Magnitudes magnitudes_;
  int exponent_ = 0;
};

}  // namespace

Casq::Casq(int bits, std::uint64_t retrain, Signs signs, Reduce reduce)
    : bits_(bits), retrain_(retrain), signs_(signs), reduce_(reduce), untrained_(laplace_thresholds(1 << bits, signs)) {}

Exchange Casq::exchange(Work& work, Context& context) const { return reduce_coded(*this, reduce_, work, context); }

std::unique_ptr<CompressorMemory> Casq::make_memory(const Parameter& parameter) const {
  return std::make_unique<Thresholds>(untrained_, parameter.elements());
}

bool Casq::needs_preparation(std::uint64_t steps) const { return steps % retrain_ == 0; }

Exchange Casq::prepare(std::span<const ParameterView* const> parameters, Context& context) const {
  ThreadPool& threads = context.threads();
  auto counts = context.scratch().take<std::int32_t>(parameters.size() * kCounts);
  auto chunks = context.scratch().take<float>(threads.threads() * kChunkElements);
  std::fill(counts.begin(), counts.end(), 0);
  threads.for_each(parameters.size(), trained_elements(parameters), [&](std::size_t i, std::size_t thread) {
    const auto chunk = chunks.subspan(thread * kChunkElements, kChunkElements);
    count_values(*parameters[i], chunk, counts.subspan(i * kCounts, kCounts));
  });
  Await round = context.sum(counts);
  co_await round;
  constexpr std::uint64_t kCostOfTraining = 2 * kChunkElements;  // it takes as long as to encode so many
  threads.for_each(parameters.size(), parameters.size() * kCostOfTraining, [&](std::size_t i, std::size_t) {
    static_cast<Thresholds&>(parameters[i]->memory()).train(counts.subspan(i * kCounts, kCounts), signs_);
  });
}

std::size_t Casq::encoded_bytes(const Piece& piece) const {
  return clusters() * sizeof(float) + kernels::packed_bytes(piece.gradient.size(), bits_);
}

void Casq::encode(Piece& piece, const kernels::Magnitudes& magnitudes, std::span<std::byte> encoded) const {
  const std::span<float> values = piece.values();
  const InFloatRange range(values, magnitudes);
  const float scale = mean_magnitude(range.magnitudes(), values.size());

  ByteWriter writer(encoded);
  const auto table_bytes = writer.take(clusters() * sizeof(float));
  const auto codes = writer.take(writer.left());
  const auto assign = [&](std::span<const float> normalised) {
    Table thresholds;
    std::transform(normalised.begin(), normalised.end(), thresholds.begin(), [scale](float t) { return t * scale; });
    return kernels::assign(values, std::span<const float>(thresholds).first(clusters() - 1), bits_, codes);
  };
  const std::span<float> thresholds = static_cast<Thresholds&>(*piece.memory).of_piece(piece);
  kernels::ClusterSums sums = assign(thresholds);
  if (kept_energy(sums) < 0.99 * energy_of_signs(range.magnitudes(), values.size())) {
    std::ranges::copy(untrained_, thresholds.begin());
    sums = assign(thresholds);
  }
  Table means{};
  const auto table = std::span<float>(means).first(clusters());
  for (std::size_t c = 0; c < table.size(); ++c)
    if (sums.count[c] > 0) table[c] = sums.sum[c] / static_cast<float>(sums.count[c]);
  follow(sums, table, scale, signs_, thresholds);
  if (piece.has_residual()) kernels::look_up_subtract(codes, bits_, table, values);
  range.undo(table);
  ByteWriter(table_bytes).write_all(std::span<const float>(table));
}

void Casq::check(std::span<const std::byte> encoded, const Piece& /*piece*/) const {
  Table means;
  const auto table = std::span<float>(means).first(clusters());
  ByteReader(encoded, "a chunk of casq").read_into(table);
  if (!std::all_of(table.begin(), table.end(), [](float mean) { return std::isfinite(mean); }))
    throw PayloadError("a chunk of casq holds a cluster mean that is not finite");
}

void Casq::decode(std::span<const std::byte> encoded, const Piece& /*piece*/, float weight, bool add,
                  std::span<float> mean) const {
  ByteReader reader(encoded, "a chunk of casq");
  Table means;
  const auto table = std::span<float>(means).first(clusters());
  reader.read_into(table);
  for (float& entry : table) entry *= weight;
  const auto codes = reader.take(reader.left());
  if (add)
    kernels::look_up_add(codes, bits_, table, mean);
  else
    kernels::look_up(codes, bits_, table, mean);
}

}  // namespace thinwire
