// The code of a chunk of casq:rate=: levels of one step, entropy-coded with static tables. docs/wire_format.md has its bytes,
// docs/rate.md the method.
//
// Levels are split into planes of bits (kernels/level_planes.h). Planes that hold bits of one probability, as blocks' classes tell it,
// go through a range coder (shared/range_coder.h) eight bits at a time; signs and low bits are sent as they are.
//
// Passes: encoding reads the values once, and writes the residual if it is wanted; decoding writes, or reads and writes, its output once.
// What is between stays in the second-level cache: about a third of a chunk's size at a bit an entry.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compressors/casq/block_classes.h"
#include "compressors/casq/chunk_layout.h"
#include "compressors/casq/coding_tables.h"
#include "compressors/shared/range_coder.h"
#include "kernels/level_planes.h"

namespace thinwire::casq {

constexpr std::size_t kMostChunkElements = 32768;

// No code of n elements is longer; where it would be, values are sent as they are.
constexpr std::size_t most_code_bytes(std::size_t n) { return 1 + n * sizeof(float); }

// The code of zeros alone, and of values as they are, which are finite; write_exact() returns its length.
bool is_zeros(std::span<const std::byte> code);
std::size_t write_exact(const kernels::Unopened& values, std::span<std::byte> code);

struct EncodedChunk {
  std::size_t bytes = 0;
  bool finite = true;  // else the code and the residual are void
};

// Encodes chunks, one after another. Large; make one for each thread, and keep it.
class ChunkEncoder {
 public:
  // Writes the code of at most kMostChunkElements values to the front of `code`, which has most_code_bytes() of them. `step` is from
  // kernels::kLeastStep to kernels::kLargestStep. The residual is empty or becomes, entry by entry, value - decoded value; it is not the
  // memory of the values; past_caches: as kernels::split_levels() has it. The same bytes on every SIMD target.
  EncodedChunk encode(std::span<const float> values, float step, std::span<std::byte> code, std::span<float> residual = {}, bool past_caches = false);
  // The same of values that are opened on the way; `opened` becomes what that finds.
  EncodedChunk open_and_encode(const kernels::Unopened& values, float step, std::span<std::byte> code, std::span<float> residual, bool past_caches,
                               kernels::Opened& opened);

  // About how many bits encode() would need if they were part of a full chunk, in half of its time. The values are finite.
  double estimate_bits(std::span<const float> values, float step);

 private:
  static constexpr std::size_t kBlocks = kMostChunkElements / kernels::kLevelBlock;
  static constexpr std::size_t kMostPlaneBytes = kMostChunkElements / 8;
  // Planes, a rest of a byte each, what a last word may write beyond, and as many escapes.
  static constexpr std::size_t kMostRunBytes = 2 * (kMostPlaneBytes * (1 + kernels::kUnaryPlanes) + 2 * kernels::kMagnitudes + 64);
  static constexpr std::size_t kMostRuns = kDensities + kernels::kMagnitudes * kernels::kUnaryPlanes;

  struct Run {
    const CodingTable* table;
    std::uint32_t begin, count;
    std::uint32_t escapes_begin = 0, escapes = 0;
  };

  kernels::SplitLevels room_for_levels(std::size_t n);
  EncodedChunk write(const kernels::SplitTotals& totals, const kernels::Unopened& values, std::span<std::byte> code, std::span<float> residual);
  std::size_t write_levels(const kernels::SplitTotals& totals, std::span<std::byte> code);
  void code_block_classes();
  std::span<const std::uint16_t> used_blocks() const { return std::span(used_).first(used_count_); }
  void make_runs();
  template <class Visit>
  void for_each_magnitude(const Visit& visit);
  void add_density_run(std::size_t density, std::span<const std::uint16_t> members);
  void add_unary_runs(std::size_t magnitude, std::span<std::uint16_t> members);
  template <class Visit>
  void split_planes(std::size_t magnitude, std::span<std::uint16_t> members, std::uint8_t* string, const Visit& visit);
  void add_run(const CodingTable& table, std::size_t begin, std::size_t end);
  void move_escapes(Run& run);
  template <std::size_t kStates>
  std::size_t write_code(ChunkKind kind, const kernels::SplitTotals& totals, std::span<std::byte> code);

  std::size_t block_count_;
  std::array<kernels::LevelBlock, kBlocks> blocks_;
  std::array<kernels::UnaryNumbers, kBlocks> unary_;
  std::array<kernels::BlockBits, kBlocks> asked_;  // what split_plane() goes on with
  std::array<std::byte, kernels::raw_capacity(kMostChunkElements)> raw_;
  std::array<std::byte, kernels::tail_capacity(kMostChunkElements)> tails_;

  std::array<std::uint8_t, kBlocks> densities_;
  std::size_t used_count_;
  std::array<std::uint16_t, kBlocks> used_;  // the blocks that are not all zero
  std::array<CodedClasses::Value, 2 * kBlocks> class_values_;
  CodedClasses classes_;

  std::size_t run_count_, run_bytes_;
  std::array<Run, kMostRuns> runs_;
  std::array<std::uint8_t, kMostRunBytes> coded_;  // the runs' bytes
  std::array<std::uint16_t, kMostRunBytes + 2 * kBlocks + kMostStates> words_;
};

// A chunk with its entropy coding undone, which takes longer than the rest of decoding. Its memory is a decoder's, or a copy's.
struct UnpackedChunk {
  std::span<const kernels::JoinedBlock> blocks;  // those that are not all zero
  std::span<const std::uint16_t> places;         // their numbers in the chunk
  std::span<const std::byte> raw;                // signs and low bits; kReadBeyondRaw bytes more may be read
  std::span<const std::byte> tails;
  std::span<const float> exact;  // the values themselves, if they were sent as they are
  float largest_exact;           // of values that were

  // No value is larger.
  float bound(float step) const;
  // out, of the chunk's size: out = weight * value, or out += weight * value.
  void store(float step, float weight, std::span<float> out) const;
  void store_past_caches(float step, float weight, std::span<float> out) const;
  void add(float step, float weight, std::span<float> out) const;

  // A copy in memory that is aligned as it is, and has as many bytes as that of a code of so many for n elements may take.
  UnpackedChunk copy_to(std::span<std::byte> memory) const;
};
constexpr std::size_t kReadBeyondRaw = 16;
constexpr std::size_t most_copy_bytes(std::size_t n, std::size_t code) {
  return kernels::level_blocks(n) * (sizeof(kernels::JoinedBlock) + sizeof(std::uint16_t)) + code + kMostStates * sizeof(std::uint16_t) + kReadBeyondRaw;
}

// Decodes chunks, one after another. Large; make one for each thread, and keep it.
class ChunkDecoder {
 public:
  // Checks the code of n <= kMostChunkElements elements, whoever made it; throws PayloadError. Valid until the next.
  UnpackedChunk unpack(std::span<const std::byte> code, std::size_t n);

 private:
  static constexpr std::size_t kBlocks = kMostChunkElements / kernels::kLevelBlock;
  static constexpr std::size_t kMostPlaneBytes = kMostChunkElements / 8;

  std::span<const kernels::JoinedBlock> blocks() const { return std::span(blocks_).first(used_count_); }
  std::span<const std::uint16_t> numbers() const;  // 0, 1, 2 and so on: those blocks'
  UnpackedChunk unpack_exact(std::span<const std::byte> rest, std::size_t n);
  template <std::size_t kStates>
  UnpackedChunk unpack_levels(std::span<const std::byte> rest, std::size_t n);
  template <class Decoder>
  void read_classes(Decoder& decoder, ClassTables tables, std::size_t block_count);
  template <class Decoder>
  void read_densities(Decoder& decoder, std::size_t n);
  template <class Decoder>
  void read_unary(Decoder& decoder, std::size_t magnitude, std::span<std::uint16_t> members);
  template <class Decoder>
  void take_run(Decoder& decoder, const CodingTable& table, std::span<std::uint8_t> values);
  UnpackedChunk find_rest(const std::byte* begin, std::span<const std::byte> hidden);

  // Of blocks that are not all zero.
  std::size_t used_count_;
  std::array<kernels::JoinedBlock, kBlocks> blocks_;
  std::array<std::uint16_t, kBlocks> places_;
  std::array<std::uint8_t, kBlocks> densities_;
  std::array<kernels::BlockBits, kBlocks> asked_;  // what join_plane() goes on with

  std::array<std::uint8_t, kMostPlaneBytes * (1 + kernels::kUnaryPlanes) + 64> planes_;
  std::array<std::byte, most_code_bytes(kMostChunkElements) + kMostStates * sizeof(std::uint16_t) + kReadBeyond> code_;
  std::array<float, kMostChunkElements> exact_values_;
  const std::byte* end_;  // of the code, in code_
};

}  // namespace thinwire::casq
