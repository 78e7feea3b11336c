#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "compressors/casq/rate_chunk.h"
#include "core/bytes.h"
#include "core/scratch.h"
#include "thinwire/errors.h"

namespace thinwire::casq {
namespace {

using kernels::BlockBits;
using kernels::JoinedBlock;

[[noreturn]] void refuse(const std::string& why) { throw PayloadError("a chunk's code " + why); }

BlockBits plane_at(const std::uint8_t* bytes, bool inverted) {
  BlockBits bits;
  std::memcpy(bits.data(), bytes, sizeof bits);
  if (inverted) bits = {~bits[0], ~bits[1]};
  return bits;
}
BlockBits one_at(std::uint8_t place) {
  BlockBits bits{};
  bits[place / 64] = std::uint64_t{1} << (place % 64);
  return bits;
}

std::size_t ones(const BlockBits& bits) { return static_cast<std::size_t>(std::popcount(bits[0]) + std::popcount(bits[1])); }

// A class that is `folded` from the last one, of those from 1, or 0, to `largest`.
std::uint8_t class_from(int last, std::uint8_t folded, int least, int largest) {
  const int found = last + unfold(folded);
  if (found < least || found > largest) refuse("has a block of class " + std::to_string(found) + ", which there is not");
  return static_cast<std::uint8_t>(found);
}

constexpr auto kNumbers = [] {
  std::array<std::uint16_t, kMostChunkElements / kernels::kLevelBlock> numbers{};
  std::ranges::generate(numbers, [next = std::uint16_t{0}]() mutable { return next++; });
  return numbers;
}();

float find_largest_exact(std::size_t tails_left, std::span<const std::byte> tails) {
  ByteReader reader(tails, "a chunk's tails");
  float largest = 0;
  for (; tails_left > 0; --tails_left) {
    if (reader.read<std::uint8_t>() != kernels::kExactTail) continue;
    const float value = std::fabs(reader.read<float>());
    if (!std::isfinite(value)) refuse("has a value that is not finite");
    largest = std::max(largest, value);
  }
  reader.expect_end();
  return largest;
}

template <class T>
void copy_into(std::span<std::byte>& memory, std::span<const T>& from) {
  const auto to = carve<T>(memory, from.size());
  std::ranges::copy(from, to.begin());
  from = to;
}

}  // namespace

float UnpackedChunk::bound(float step) const {
  float largest = largest_exact;
  for (const JoinedBlock& block : blocks) largest = std::max(largest, kernels::largest_decoded(block, step));
  return largest;
}

void UnpackedChunk::store(float step, float weight, std::span<float> out) const {
  if (exact.empty()) return kernels::join_levels(blocks, places, raw.data(), tails.data(), step, weight, out);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = weight * exact[i];
}

void UnpackedChunk::store_past_caches(float step, float weight, std::span<float> out) const {
  if (!exact.empty()) return store(step, weight, out);
  kernels::join_levels_past_caches(blocks, places, raw.data(), tails.data(), step, weight, out);
}

void UnpackedChunk::add(float step, float weight, std::span<float> out) const {
  if (exact.empty()) return kernels::join_levels_add(blocks, places, raw.data(), tails.data(), step, weight, out);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] += weight * exact[i];
}

UnpackedChunk UnpackedChunk::copy_to(std::span<std::byte> memory) const {
  UnpackedChunk copy = *this;
  copy_into(memory, copy.blocks);
  copy_into(memory, copy.exact);
  copy_into(memory, copy.places);
  copy_into(memory, copy.raw);
  copy_into(memory, copy.tails);
  return copy;
}

std::span<const std::uint16_t> ChunkDecoder::numbers() const { return std::span(kNumbers).first(used_count_); }

UnpackedChunk ChunkDecoder::unpack(std::span<const std::byte> code, std::size_t n) {
  ByteReader reader(code, "a chunk's code");
  const auto kind = reader.read<ChunkKind>();
  const auto rest = code.subspan(1);
  if (code.size() > most_code_bytes(n)) refuse("has " + std::to_string(code.size()) + " bytes, more than its values");
  switch (kind) {
    case ChunkKind::kZeros:
      reader.expect_end();
      return {};
    case ChunkKind::kExact: return unpack_exact(rest, n);
    case ChunkKind::kOneState: return unpack_levels<1>(rest, n);
    case ChunkKind::kFourStates: return unpack_levels<4>(rest, n);
    case ChunkKind::kManyStates: return unpack_levels<kMostStates>(rest, n);
  }
  refuse("is of kind " + std::to_string(static_cast<int>(kind)) + ", which there is not");
}

UnpackedChunk ChunkDecoder::unpack_exact(std::span<const std::byte> rest, std::size_t n) {
  const auto values = std::span(exact_values_).first(n);
  ByteReader reader(rest, "a chunk's code");
  reader.read_into(values);
  reader.expect_end();
  UnpackedChunk unpacked{};
  unpacked.exact = values;
  for (const float value : values) {
    if (!std::isfinite(value)) refuse("has a value that is not finite");
    unpacked.largest_exact = std::max(unpacked.largest_exact, std::fabs(value));
  }
  return unpacked;
}

template <std::size_t kStates>
UnpackedChunk ChunkDecoder::unpack_levels(std::span<const std::byte> rest, std::size_t n) {
  ByteReader reader(rest, "a chunk's code");
  const auto tables = reader.read<std::uint16_t>();
  if (tables >= kClassTablesEnd) refuse("chooses tables that there are not");

  // Before the code is room for what its states hid of what follows their words.
  std::byte* const code = code_.data() + kMostStates * sizeof(std::uint16_t);
  std::copy(rest.end() - static_cast<std::ptrdiff_t>(reader.left()), rest.end(), code);
  end_ = code + reader.left();
  std::memset(code + reader.left(), 0, kReadBeyond);
  std::array<std::uint32_t, kStates> states;
  const std::byte* const words = code + read_states(code, states);
  RangeDecoder<kStates> decoder(states, words);
  read_classes(decoder, ClassTables::unpack(tables), kernels::level_blocks(n));
  read_densities(decoder, n);
  Grouped<kernels::kMagnitudes, kBlocks> by_magnitude(numbers(), [&](std::size_t b) { return blocks_[b].magnitude; });
  for (std::size_t magnitude = 1; magnitude < kernels::kMagnitudes; ++magnitude)
    if (!by_magnitude[magnitude].empty()) read_unary(decoder, magnitude, by_magnitude[magnitude]);

  std::array<std::uint16_t, kStates> hidden;
  for (std::size_t s = 0; s < kStates; ++s) {
    if (decoder.states()[s] >> 16 != 1) refuse("does not end as it began");
    hidden[s] = static_cast<std::uint16_t>(decoder.states()[s]);
  }
  return find_rest(decoder.next(), std::as_bytes(std::span(hidden)));
}

template <class Decoder>
void ChunkDecoder::read_classes(Decoder& decoder, ClassTables chosen, std::size_t block_count) {
  const CodingTables& tables = coding_tables();
  ClassContext context;
  std::size_t taken = 0;
  used_count_ = 0;
  const auto take = [&](unsigned of) {
    const std::uint8_t value = decoder.take(taken++, class_table(tables, chosen, of));
    if (decoder.next() > end_) refuse("ends within its classes");
    return value;
  };
  for (std::size_t b = 0; b < block_count; ++b) {
    const std::uint8_t folded = take(context.after_others ? 1 : 0);
    context.after_others = folded != 0;
    if (folded == 0) continue;
    places_[used_count_] = static_cast<std::uint16_t>(b);
    densities_[used_count_] = context.density = class_from(context.density, static_cast<std::uint8_t>(folded - 1), 1, kDensities - 1);
    blocks_[used_count_].planes = 0;
    blocks_[used_count_].magnitude = context.magnitude = class_from(context.magnitude, take(2), 0, kernels::kMagnitudes - 1);
    ++used_count_;
  }
}

template <class Decoder>
void ChunkDecoder::take_run(Decoder& decoder, const CodingTable& table, std::span<std::uint8_t> values) {
  if (!thinwire::take_run(decoder, table, values, end_)) refuse("ends within its planes");
}

template <class Decoder>
void ChunkDecoder::read_densities(Decoder& decoder, std::size_t n) {
  Grouped<kDensities, kBlocks> by_density(numbers(), [&](std::size_t b) { return densities_[b]; });
  for (std::size_t density = 1; density < kDensities; ++density) {
    const auto members = by_density[density];
    const auto values = std::span(planes_).first(members.size() * density_bytes(density));
    take_run(decoder, density_table(coding_tables(), density), values);
    const std::uint8_t* next = values.data();
    for (const std::uint16_t b : members) {
      blocks_[b].nonzero = density == 1 ? one_at(*next) : plane_at(next, kDensityCodings[density].inverted);
      next += density_bytes(density);
    }
  }
  const std::size_t last_block = kernels::level_blocks(n) - 1;
  if (used_count_ == 0 || places_[used_count_ - 1] != last_block) return;
  const std::size_t in_last = n - last_block * kernels::kLevelBlock;
  const BlockBits& last = blocks_[used_count_ - 1].nonzero;
  if (in_last < 64 ? last[0] >> in_last != 0 || last[1] != 0 : in_last < 128 && last[1] >> (in_last - 64) != 0)
    refuse("has levels beyond its last value");
}

template <class Decoder>
void ChunkDecoder::read_unary(Decoder& decoder, std::size_t magnitude, std::span<std::uint16_t> members) {
  PlaneRuns runs(magnitude);
  kernels::PlaneTotals totals{members.size(), 0};
  for (const std::uint16_t b : members) {
    asked_[b] = blocks_[b].nonzero;
    totals.set += ones(blocks_[b].nonzero);
  }
  for (std::size_t plane = 0; plane < kernels::kUnaryPlanes && totals.set > 0; ++plane) {
    runs.next(totals.set);
    take_run(decoder, runs.table(coding_tables()), std::span(planes_).subspan(runs.begin(), runs.end() - runs.begin()));
    totals = kernels::join_plane(blocks_, asked_, members.first(totals.active), plane, std::as_bytes(std::span(planes_)).data(), runs.begin_bit());
  }
}

// What follows the words: signs and low bits, of which the states hid the first bytes, and tails.
UnpackedChunk ChunkDecoder::find_rest(const std::byte* begin, std::span<const std::byte> hidden) {
  const kernels::JoinTotals totals = kernels::count_joined(blocks());
  const std::size_t raw_bytes = (totals.raw_bits + 7) / 8, here = raw_bytes - std::min(raw_bytes, hidden.size());
  if (static_cast<std::size_t>(end_ - begin) < here) refuse("ends within its signs and low bits");
  std::byte* const raw = code_.data() + (begin - code_.data()) - hidden.size();
  std::copy(hidden.begin(), hidden.end(), raw);
  const std::span<const std::byte> tails(begin + here, end_);
  return {blocks(), std::span(places_).first(used_count_), {raw, raw_bytes}, tails, {}, find_largest_exact(totals.tails, tails)};
}

}  // namespace thinwire::casq
