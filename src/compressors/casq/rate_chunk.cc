#include "compressors/casq/rate_chunk.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <ranges>

#include "compressors/shared/range_coder.h"
#include "core/bytes.h"
#include "kernels/bit_string.h"

namespace thinwire::casq {
namespace {

using kernels::kLevelBlock;

// How many states levels are coded with, of which so many are not zero: a state costs half a byte and saves time. Such a level takes some 5 to 8 bits where levels are small.
constexpr std::size_t states_for(std::size_t nonzero) { return nonzero < 256 ? 1 : nonzero < 1024 ? 4 : kMostStates; }
constexpr double kHeadBits = 8 * 3, kStateBits = 4.5;  // that a chunk costs: kind and tables; and a state, beyond what it hides

struct BitCounts {
  std::size_t ones = 0, all = 0;
  void add(std::size_t more_ones, std::size_t more) {
    ones += more_ones;
    all += more;
  }
  double cost(double probability) const {
    return -static_cast<double>(ones) * std::log2(probability) - static_cast<double>(all - ones) * std::log2(1 - probability);
  }
};

}  // namespace

bool is_zeros(std::span<const std::byte> code) { return code.size() == 1 && code[0] == static_cast<std::byte>(ChunkKind::kZeros); }

std::size_t write_exact(const kernels::Unopened& values, std::span<std::byte> code) {
  ByteWriter writer(code);
  writer.write(ChunkKind::kExact);
  const std::size_t count = values.gradient.size();
  for (std::size_t begin = 0; begin < count; begin += kLevelBlock) {
    std::array<float, kLevelBlock> room;
    const auto block = std::span(room).first(std::min(kLevelBlock, count - begin));
    const kernels::Unopened here = values.part(begin, block.size());
    kernels::open(here.gradient, here.scale, here.residual, block);
    writer.write_all(std::span<const float>(block));
  }
  return most_code_bytes(count);
}

kernels::SplitLevels ChunkEncoder::room_for_levels(std::size_t n) {
  block_count_ = kernels::level_blocks(n);
  return {std::span(blocks_).first(block_count_), unary_, raw_, tails_};
}

EncodedChunk ChunkEncoder::encode(std::span<const float> values, float step, std::span<std::byte> code, std::span<float> residual,
                                  bool past_caches) {
  return write(kernels::split_levels(values, step, room_for_levels(values.size()), residual, past_caches), {values}, code, residual);
}

EncodedChunk ChunkEncoder::open_and_encode(const kernels::Unopened& values, float step, std::span<std::byte> code, std::span<float> residual,
                                           bool past_caches, kernels::Opened& opened) {
  return write(kernels::open_and_split(values, step, room_for_levels(values.gradient.size()), residual, past_caches, opened), values, code, residual);
}

EncodedChunk ChunkEncoder::write(const kernels::SplitTotals& totals, const kernels::Unopened& values, std::span<std::byte> code,
                                 std::span<float> residual) {
  if (!totals.finite) return {0, false};
  if (totals.nonzero == 0) {
    code[0] = static_cast<std::byte>(ChunkKind::kZeros);
    return {1, true};
  }
  const std::size_t most = most_code_bytes(values.gradient.size());
  std::size_t bytes = totals.raw_bits / 8 + totals.tail_bytes;
  if (bytes < most) bytes = write_levels(totals, code.first(most));
  if (bytes < most) return {bytes, true};
  std::fill(residual.begin(), residual.end(), 0.0F);
  return {write_exact(values, code), true};
}

std::size_t ChunkEncoder::write_levels(const kernels::SplitTotals& totals, std::span<std::byte> code) {
  code_block_classes();
  make_runs();
  switch (states_for(totals.nonzero)) {
    case 1: return write_code<1>(ChunkKind::kOneState, totals, code);
    case 4: return write_code<4>(ChunkKind::kFourStates, totals, code);
    default: return write_code<kMostStates>(ChunkKind::kManyStates, totals, code);
  }
}

double ChunkEncoder::estimate_bits(std::span<const float> values, float step) {
  const kernels::SplitTotals totals = kernels::split_levels(values, step, room_for_levels(values.size()), {});
  const double share = static_cast<double>(values.size()) / kMostChunkElements;
  double bits = share * (kHeadBits + kStateBits * static_cast<double>(states_for(static_cast<std::size_t>(static_cast<double>(totals.nonzero) / share))));
  if (totals.nonzero == 0) return bits;
  code_block_classes();
  std::array<BitCounts, kBitProbabilities.size()> counts{};
  bits += static_cast<double>(classes_.cost) / 256 + static_cast<double>(totals.raw_bits + 8 * totals.tail_bytes);
  for (const std::uint16_t b : used_blocks()) {
    const DensityCoding density = kDensityCodings[densities_[b]];
    if (densities_[b] == 1) bits += 7;
    if (densities_[b] > 1) counts[density.table].add(density.inverted ? kLevelBlock - blocks_[b].count : blocks_[b].count, kLevelBlock);
  }
  for_each_magnitude([&](std::size_t magnitude, std::span<std::uint16_t> members) {
    split_planes(magnitude, members, coded_.data(), [&](const PlaneRuns& runs, std::size_t asked, std::size_t set) {
      counts[runs.table_number()].add(set, asked);
    });
  });
  for (std::size_t t = 0; t < counts.size(); ++t) bits += counts[t].cost(kBitProbabilities[t] / 65536.0);
  return std::min(bits, 8.0 * static_cast<double>(most_code_bytes(values.size())));
}

void ChunkEncoder::code_block_classes() {
  classes_.values = class_values_;
  code_classes(std::span(blocks_).first(block_count_), densities_, classes_);
  used_count_ = 0;
  for (std::size_t b = 0; b < block_count_; ++b) {
    used_[used_count_] = static_cast<std::uint16_t>(b);
    used_count_ += densities_[b] != 0 ? 1 : 0;
  }
}

void ChunkEncoder::make_runs() {
  run_count_ = run_bytes_ = 0;
  Grouped<kDensities, kBlocks> by_density(used_blocks(), [&](std::size_t b) { return densities_[b]; });
  for (std::size_t density = 1; density < kDensities; ++density) add_density_run(density, by_density[density]);
  for_each_magnitude([this](std::size_t magnitude, std::span<std::uint16_t> members) { add_unary_runs(magnitude, members); });
}

// Magnitude 0 says all: there are no planes.
template <class Visit>
void ChunkEncoder::for_each_magnitude(const Visit& visit) {
  Grouped<kernels::kMagnitudes, kBlocks> by_magnitude(used_blocks(), [&](std::size_t b) { return blocks_[b].magnitude; });
  for (std::size_t magnitude = 1; magnitude < kernels::kMagnitudes; ++magnitude)
    if (!by_magnitude[magnitude].empty()) visit(magnitude, by_magnitude[magnitude]);
}

void ChunkEncoder::add_density_run(std::size_t density, std::span<const std::uint16_t> members) {
  const std::size_t begin = run_bytes_;
  const std::uint64_t flip = kDensityCodings[density].inverted ? ~std::uint64_t{0} : 0;
  std::uint8_t* next = coded_.data() + begin;
  for (const std::uint16_t b : members) {
    const kernels::BlockBits& nonzero = blocks_[b].nonzero;
    if (density == 1) {
      *next++ = static_cast<std::uint8_t>(nonzero[0] != 0 ? std::countr_zero(nonzero[0]) : 64 + std::countr_zero(nonzero[1]));
    } else {
      for (const std::uint64_t word : nonzero) {
        const std::uint64_t flipped = word ^ flip;
        std::memcpy(next, &flipped, sizeof flipped);
        next += sizeof flipped;
      }
    }
  }
  run_bytes_ = static_cast<std::size_t>(next - coded_.data());
  add_run(density_table(coding_tables(), density), begin, run_bytes_);
}

// Writes the planes of blocks of one magnitude; calls visit(runs, asked, set) after each, of so many bits of which so many are ones.
template <class Visit>
void ChunkEncoder::split_planes(std::size_t magnitude, std::span<std::uint16_t> members, std::uint8_t* string, const Visit& visit) {
  PlaneRuns runs(magnitude);
  kernels::BitAppender appender(reinterpret_cast<std::byte*>(string));
  kernels::PlaneTotals totals{members.size(), 0};
  for (const std::uint16_t b : members) {
    asked_[b] = blocks_[b].nonzero;
    totals.set += blocks_[b].count;
  }
  for (std::size_t plane = 0; plane < kernels::kUnaryPlanes && totals.set > 0; ++plane) {
    const std::size_t asked = totals.set;
    runs.next(asked);
    appender.pad_to(runs.begin_bit());
    totals = kernels::split_plane(unary_, asked_, members.first(totals.active), plane, appender);
    visit(runs, asked, totals.set);
  }
  appender.finish();
}

void ChunkEncoder::add_unary_runs(std::size_t magnitude, std::span<std::uint16_t> members) {
  const std::size_t first_byte = run_bytes_, first_run = run_count_;
  split_planes(magnitude, members, coded_.data() + first_byte, [&](const PlaneRuns& runs, std::size_t, std::size_t) {
    run_bytes_ = first_byte + runs.end();
    runs_[run_count_++] = {&runs.table(coding_tables()), static_cast<std::uint32_t>(first_byte + runs.begin()),
                           static_cast<std::uint32_t>(runs.end() - runs.begin()), 0};
  });
  for (std::size_t r = first_run; r < run_count_; ++r) move_escapes(runs_[r]);
}

void ChunkEncoder::add_run(const CodingTable& table, std::size_t begin, std::size_t end) {
  if (begin == end) return;
  runs_[run_count_] = {&table, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end - begin), 0};
  move_escapes(runs_[run_count_++]);
}

// Behind all that was coded so far.
void ChunkEncoder::move_escapes(Run& run) {
  run.escapes_begin = static_cast<std::uint32_t>(run_bytes_);
  run.escapes = static_cast<std::uint32_t>(take_out_escapes(*run.table, std::span(coded_).subspan(run.begin, run.count), coded_.data() + run_bytes_));
  run_bytes_ += run.escapes;
}

template <std::size_t kStates>
std::size_t ChunkEncoder::write_code(ChunkKind kind, const kernels::SplitTotals& totals, std::span<std::byte> code) {
  const CodingTables& tables = coding_tables();
  const std::size_t raw_bytes = (totals.raw_bits + 7) / 8, hidden_bytes = std::min(raw_bytes, kStates * sizeof(std::uint16_t));
  std::array<std::uint16_t, kMostStates> hidden{};
  std::memcpy(hidden.data(), raw_.data(), hidden_bytes);
  std::uint16_t* const words_end = words_.data() + words_.size();
  RangeEncoder<kStates> encoder(words_end, hidden);
  for (const Run& run : std::span(runs_).first(run_count_) | std::views::reverse) {
    encoder.put_run(even_bytes(), std::span(coded_).subspan(run.escapes_begin, run.escapes));
    encoder.put_run(*run.table, std::span(coded_).subspan(run.begin, run.count));
  }
  for (std::size_t i = classes_.count; i-- > 0;)
    encoder.put(i, class_table(tables, classes_.tables, class_values_[i].context), class_values_[i].value);

  const auto words = std::as_bytes(std::span(encoder.front(), words_end));
  const auto raw = std::span(raw_).first(raw_bytes).subspan(hidden_bytes);
  std::array<std::byte, most_state_bytes(kStates) + 8> states;
  const std::size_t state_bytes = write_states(encoder.states(), states.data());
  const std::size_t bytes = 3 + state_bytes + words.size() + raw.size() + totals.tail_bytes;
  if (bytes >= code.size()) return bytes;
  ByteWriter writer(code);
  writer.write(kind);
  writer.write(classes_.tables.packed());
  writer.write_all(std::span<const std::byte>(states).first(state_bytes));
  writer.write_all(words);
  writer.write_all(std::span<const std::byte>(raw));
  writer.write_all(std::span<const std::byte>(tails_).first(totals.tail_bytes));
  return bytes;
}

}  // namespace thinwire::casq
