#include "compressors/casq/casq.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "compressors/casq/casq_division.h"
#include "compressors/casq/casq_memory.h"
#include "compressors/casq/casq_tables.h"
#include "compressors/casq/casq_training.h"
#include "core/scratch.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

using Entries = std::array<float, CasqChunk::kMostClusters>;

CasqMemory& memory_of(const Piece& piece) { return static_cast<CasqMemory&>(*piece.memory); }
CasqMemory& memory_of(const ParameterView& parameter) { return static_cast<CasqMemory&>(parameter.memory()); }

bool any_counted(std::span<const std::int32_t> counts) {
  return std::any_of(counts.begin(), counts.end(), [](std::int32_t count) { return count > 0; });
}

// A chunk's overhead, and with it the parameter's, grows with its clusters.
BitChoices choices_of(std::span<const std::int32_t> counts, float energy, const ChunkGrid& grid, const CasqOptions& options) {
  BitChoices choices;
  for (int bits = 1; bits <= kernels::kMaxCodeBits; ++bits) {
    double bytes = 0;
    for (std::uint64_t i = 0; i < grid.chunks(); ++i) bytes += static_cast<double>(CasqChunk(options, bits, grid.length(i)).bytes());
    choices.cost.push_back(8 * bytes);
    const double lost = any_counted(counts) ? relative_error(counts, trained_thresholds(counts, bits, options)) : 0;
    choices.error.push_back(lost * static_cast<double>(energy));
  }
  return choices;
}

void decode_blocks(const CasqChunk& chunk, const CasqChunk::Parts<const std::byte>& parts, std::span<const float> table,
                   float weight, bool add, std::span<float> mean) {
  Entries room;
  const auto entries = std::span(room).first(table.size());
  for (std::size_t b = 0; b < chunk.blocks(); ++b) {
    const std::size_t first = b * CasqChunk::kBlockElements;
    const auto block = mean.subspan(first, std::min(CasqChunk::kBlockElements, mean.size() - first));
    const float scale = chunk.scale(parts.scales, b);
    std::transform(table.begin(), table.end(), entries.begin(), [=](float entry) { return weight * scaled(entry, scale); });
    const auto codes = parts.codes.subspan(kernels::packed_bytes(first, chunk.bits()),
                                           kernels::packed_bytes(block.size(), chunk.bits()));
    if (add)
      kernels::look_up_add(codes, chunk.bits(), entries, block);
    else
      kernels::look_up(codes, chunk.bits(), entries, block);
  }
}

}  // namespace

Casq::Casq(const CasqOptions& options) : options_(options) {
  const auto counts = laplace_histogram();
  const int fewest = adaptive() ? 1 : options.bits, most = adaptive() ? kernels::kMaxCodeBits : options.bits;
  for (int bits = fewest; bits <= most; ++bits)
    untrained_[static_cast<std::size_t>(bits)] = trained_thresholds(counts, bits, options);
}

Exchange Casq::exchange(Work& work, Context& context) const { return reduce_coded(*this, options_.reduce, work, context); }

std::unique_ptr<CompressorMemory> Casq::make_memory(const Parameter& parameter, std::uint64_t chunk) const {
  const int bits = adaptive() ? static_cast<int>(options_.budget) : options_.bits;
  return std::make_unique<CasqMemory>(bits, !adaptive(), untrained(bits), parameter.elements(), chunk);
}

bool Casq::needs_preparation(std::uint64_t steps) const { return steps % options_.retrain == 0; }

Exchange Casq::prepare(std::span<const ParameterView* const> parameters, Context& context) const {
  ThreadPool& threads = context.threads();
  auto counts = context.scratch().take<std::int32_t>(parameters.size() * kHistogramCounts);
  auto chunks = context.scratch().take<float>(threads.threads() * kChunkElements);
  auto energies = context.scratch().take<float>(parameters.size());
  auto bits = context.scratch().take<std::uint8_t>(parameters.size());
  const auto counts_of = [counts](std::size_t i) { return counts.subspan(i * kHistogramCounts, kHistogramCounts); };
  std::fill(counts.begin(), counts.end(), 0);
  threads.for_each(parameters.size(), counted_elements(parameters), [&](std::size_t i, std::size_t thread) {
    const auto chunk = chunks.subspan(thread * kChunkElements, kChunkElements);
    const auto energy = static_cast<float>(count_values(*parameters[i], options_.scope, chunk, counts_of(i)));
    energies[i] = std::isfinite(energy) ? energy : 0.0f;
  });
  Await round = context.sum(counts);
  co_await round;
  std::fill(bits.begin(), bits.end(), static_cast<std::uint8_t>(options_.bits));
  if (adaptive()) {
    Await second = context.sum(energies);
    co_await second;
    choose_bits(parameters, counts, energies, context, bits);
    // Sums of floats are the same everywhere, but codes whose length is not would end in an error: one worker decides.
    Await third = context.broadcast(std::as_writable_bytes(bits), 0);
    co_await third;
    check_bits(bits);
  }
  constexpr std::uint64_t kCostOfTraining = 2 * kChunkElements;  // it takes as long as to encode so many
  threads.for_each(parameters.size(), parameters.size() * kCostOfTraining, [&](std::size_t i, std::size_t) {
    if (any_counted(counts_of(i)))
      memory_of(*parameters[i]).train(bits[i], trained_thresholds(counts_of(i), bits[i], options_));
    else if (adaptive())
      memory_of(*parameters[i]).train(bits[i], untrained(bits[i]));
  });
}

void Casq::choose_bits(std::span<const ParameterView* const> parameters, std::span<const std::int32_t> counts,
                       std::span<const float> energies, Context& context, std::span<std::uint8_t> bits) const {
  std::vector<BitChoices> choices(parameters.size());
  double elements = 0;
  for (const ParameterView* parameter : parameters) elements += static_cast<double>(parameter->elements());
  context.threads().for_each(parameters.size(), parameters.size() * 8 * kChunkElements, [&](std::size_t i, std::size_t) {
    const auto own = counts.subspan(i * kHistogramCounts, kHistogramCounts);
    const float energy = std::min(energies[i], std::numeric_limits<float>::max());
    choices[i] = choices_of(own, energy, memory_of(*parameters[i]).grid(), options_);
  });
  std::ranges::copy(spend_budget(choices, options_.budget * elements), bits.begin());
}

void Casq::check_bits(std::span<const std::uint8_t> bits) const {
  for (const std::uint8_t chosen : bits)
    if (chosen < 1 || chosen > kernels::kMaxCodeBits)
      throw PayloadError("worker 0 chose " + std::to_string(chosen) + " bits an entry for a parameter of casq");
}

CasqChunk Casq::chunk_of(const Piece& piece) const {
  return CasqChunk(options_, memory_of(piece).bits(), piece.elements());
}

std::size_t Casq::room_bytes(const Piece& piece, std::size_t codes) const {
  const CasqChunk chunk = chunk_of(piece);
  return chunk.has_tables() ? TableRoom::bytes(chunk) : codes * (sizeof(kernels::Coded) + chunk.clusters() * sizeof(float));
}

std::size_t Casq::encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                               std::span<std::byte> code, std::span<std::byte> room_for_tables) const {
  const CasqChunk chunk = chunk_of(piece);
  const auto parts = chunk.parts(code);
  const std::span<float> thresholds = memory_of(piece).of_piece(piece, pass);

  const InFloatRange range(values, magnitudes);
  CasqDivision division(chunk, values, range, parts);
  if (!division.divide(thresholds)) {
    std::ranges::copy(untrained(chunk.bits()), thresholds.begin());
    division.divide(thresholds);
  }
  if (options_.tail == 0) division.follow(options_.signs, thresholds);

  Entries room;
  const auto centres = std::span(room).first(chunk.clusters());
  for (std::size_t c = 0; c < centres.size(); ++c) centres[c] = static_cast<float>(division.totals().centre(c));
  range.undo(values);
  if (chunk.blocks() == 0) range.undo(centres);  // else the scales hold the range
  if (chunk.has_tables())
    write_tables(chunk, options_, values, centres, parts, TableRoom(chunk, room_for_tables));
  else
    chunk.write_table(centres, parts.table);
  return code.size();
}

float Casq::check(std::span<const std::byte> code, const Piece& piece) const {
  const CasqChunk chunk = chunk_of(piece);
  const float largest = chunk.check(code);
  if (chunk.has_tables()) check_tables(chunk, chunk.parts(code));
  return largest;
}

void Casq::decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> mean,
                  std::span<std::byte> room_for_tables) const {
  const CasqChunk chunk = chunk_of(piece);
  const auto parts = chunk.parts(code);
  if (chunk.has_tables())
    return decode_tables(chunk, options_.assign, parts, weight, add, mean, TableRoom(chunk, room_for_tables));
  Entries room;
  const auto table = std::span(room).first(chunk.clusters());
  chunk.read_table(parts.table, table);
  if (chunk.blocks() > 0) return decode_blocks(chunk, parts, table, weight, add, mean);
  for (float& entry : table) entry *= weight;
  if (add)
    kernels::look_up_add(parts.codes, chunk.bits(), table, mean);
  else
    kernels::look_up(parts.codes, chunk.bits(), table, mean);
}

void Casq::decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& piece, float weight, std::span<float> values,
                      std::span<std::byte> room) const {
  const CasqChunk chunk = chunk_of(piece);
  if (chunk.has_tables() || chunk.blocks() > 0) return Codec::decode_sum(codes, piece, weight, values, room);
  const auto coded = carve<kernels::Coded>(room, codes.size());
  const auto tables = carve<float>(room, codes.size() * chunk.clusters());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const auto parts = chunk.parts(codes[i]);
    const auto table = tables.subspan(i * chunk.clusters(), chunk.clusters());
    chunk.read_table(parts.table, table);
    for (float& entry : table) entry *= weight;
    coded[i] = {parts.codes, table};
  }
  kernels::look_up_sum(coded, chunk.bits(), values);
}

}  // namespace thinwire
