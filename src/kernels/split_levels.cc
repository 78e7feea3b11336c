#include "kernels/level_planes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <numeric>

#include "kernels/bit_string.h"
#include "kernels/level_magnitude.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/split_levels.cc"
#include "hwy/foreach_target.h"  // must come before the next six
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/bit_deposit-inl.h"
#include "kernels/groups-inl.h"
#include "kernels/level_blocks-inl.h"
#include "kernels/opening-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr float kRounding = 0.4F;
constexpr std::uint8_t kLargestNarrowLevel = 127;  // a bit of their bytes is the sign

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kAhead = 4;  // blocks that are on their way from memory

using UnsignedEighth = hn::Rebind<std::uint8_t, Tag<float>>;

// Where split_levels() writes.
struct SplitState {
  LevelBlock* block;
  UnaryNumbers* unary;
  BitAppender raw;
  std::byte* tail;
  float inverse, step;
  bool past_caches;
};

HWY_INLINE void store_left(const SplitState& state, Vector<float> left, float* residual) {
  if (state.past_caches) hn::Stream(left, kFloat, residual);
  else hn::StoreU(left, kFloat, residual);
}

// How many steps a magnitude is; its whole part is the level.
HWY_INLINE Vector<float> steps_of(Vector<float> magnitude, float inverse) {
  return hn::Add(hn::Mul(magnitude, hn::Set(kFloat, inverse)), hn::Set(kFloat, kRounding));
}

// Appends the bits of those entries.
HWY_INLINE void append(BitAppender& string, const BlockBits& bits, const BlockBits& of) {
  const unsigned low = count_ones(of[0]), high = count_ones(of[1]);
  const std::uint64_t low_bits = extract(bits[0], of[0]), high_bits = extract(bits[1], of[1]);
  if (low + high <= 64) {
    string.append(low_bits | high_bits << low % 64, low + high);
  } else {
    string.append(low_bits, low);
    string.append(high_bits, high);
  }
}

// What the first n of a block's values leave; level_at(i) are the levels from entry i on.
template <class LevelAt>
HWY_INLINE void write_residual(const SplitState& state, const LevelAt& level_at, const float* values, std::size_t n, float offset, float* residual) {
  HWY_ALIGN float padded[kLevelBlock];
  float* const to = n == kLevelBlock ? residual : padded;
  for (std::size_t i = 0; i < kLevelBlock; i += kWidth<float>) {
    const auto x = hn::LoadU(kFloat, values + i);
    const auto left = hn::Sub(x, decoded_of(hn::Or(hn::ConvertTo(kFloat, level_at(i)), signs_of(x)), offset, state.step));
    store_left(state, left, to + i);
  }
  if (n < kLevelBlock) std::copy_n(padded, n, residual);
}

// The levels of at most kLargestNarrowLevel of one block.
class NarrowBlock {
 public:
  HWY_INLINE NarrowBlock(const float* values, float inverse) {
    ByteBlock negative;
    for (std::size_t i = 0; i < kByteVectors; ++i) {
      const ByteVector with_signs = bytes_of(values + i * kByteLanes, inverse);
      const auto sign = hn::Set(Bytes(), 0x80);
      negative.vectors[i] = hn::And(with_signs, sign);
      levels_.vectors[i] = hn::AndNot(sign, with_signs);
      excess_.vectors[i] = hn::SaturatedSub(levels_.vectors[i], hn::Set(Bytes(), 1));
      hn::Store(levels_.vectors[i], Bytes(), stored_ + i * kByteLanes);
    }
    negative_ = nonzero_bits(negative);
    nonzero_ = nonzero_bits(levels_);
  }

  BlockBits nonzero() const { return nonzero_; }
  BlockBits negative() const { return negative_; }
  std::uint32_t level(std::size_t i) const { return stored_[i]; }

  HWY_INLINE std::uint32_t excess() const {
    if constexpr (kByteLanes < 8) {
      return std::accumulate(stored_, stored_ + kLevelBlock, 0U, [](std::uint32_t sum, std::uint8_t level) { return sum + level - (level > 0 ? 1 : 0); });
    } else {
      auto sums = hn::SumsOf8(excess_.vectors[0]);
      for (std::size_t i = 1; i < kByteVectors; ++i) sums = hn::Add(sums, hn::SumsOf8(excess_.vectors[i]));
      return static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(hn::DFromV<decltype(sums)>(), sums)));
    }
  }
  HWY_INLINE unsigned magnitude(std::uint32_t count, std::uint32_t excess) const {
    return magnitude_of(stored_, count, excess, [&](std::uint32_t least) HWY_ATTR {
      return least <= kLargestNarrowLevel && any(bits_above(levels_, static_cast<std::uint8_t>(least)));
    });
  }

  // Of q - 1 what is above the low bits.
  HWY_INLINE void write_unary(unsigned low_bits, std::uint8_t* numbers) const {
    const auto keep = hn::Set(Bytes(), static_cast<std::uint8_t>(0xFFU >> low_bits));
    for (std::size_t i = 0; i < kByteVectors; ++i) {
      const ByteVector v = excess_.vectors[i];
      if constexpr (kByteLanes == 1) {
        numbers[i] = static_cast<std::uint8_t>(hn::GetLane(v) >> low_bits);
      } else {
        const auto words = hn::BitCast(hn::Repartition<std::uint16_t, Bytes>(), v);
        hn::StoreU(hn::And(hn::BitCast(Bytes(), hn::ShiftRightSame(words, static_cast<int>(low_bits))), keep), Bytes(), numbers + i * kByteLanes);
      }
    }
  }
  HWY_INLINE BlockBits low_plane(unsigned j) const { return bit_plane(excess_, j); }

  HWY_INLINE void leave_residual(const SplitState& state, const float* values, std::size_t n, float offset, float* residual) const {
    const auto level_at = [this](std::size_t i) HWY_ATTR { return hn::PromoteTo(kInt, hn::LoadU(UnsignedEighth(), stored_ + i)); };
    write_residual(state, level_at, values, n, offset, residual);
  }

 private:
  // Of as many values as a vector has bytes: the levels, and 128 for those below 0.
  static HWY_INLINE ByteVector bytes_of(const float* values, float inverse) {
    if constexpr (kByteLanes == 1) {
      return hn::Set(Bytes(), static_cast<std::uint8_t>(hn::GetLane(byte_of(values, inverse))));
    } else {
      // Byte v of lane l is of value v * lanes + l. Bytes change places within each 16, then fours of them.
      const auto low = hn::Or(byte_of(values, inverse), hn::ShiftLeft<8>(byte_of(values + kWidth<float>, inverse)));
      const auto high = hn::Or(byte_of(values + 2 * kWidth<float>, inverse), hn::ShiftLeft<8>(byte_of(values + 3 * kWidth<float>, inverse)));
      const auto mixed = hn::BitCast(Bytes(), hn::Or(low, hn::ShiftLeft<16>(high)));
      HWY_ALIGN static constexpr std::uint8_t kTransposed[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
      const auto fours = hn::TableLookupBytes(mixed, hn::LoadDup128(Bytes(), kTransposed));
      if constexpr (kByteLanes == 16) return fours;
      HWY_ALIGN std::int32_t places[kWidth<float>];
      constexpr std::size_t kSixteens = kByteLanes / 16;
      for (std::size_t i = 0; i < kWidth<float>; ++i) places[i] = static_cast<std::int32_t>(i % kSixteens * 4 + i / kSixteens);
      return hn::BitCast(Bytes(), hn::TableLookupLanes(hn::BitCast(kInt, fours), hn::SetTableIndices(kInt, places)));
    }
  }
  static HWY_INLINE Vector<std::int32_t> byte_of(const float* values, float inverse) {
    const auto x = hn::LoadU(kFloat, values);
    const auto steps = hn::Min(steps_of(hn::Abs(x), inverse), hn::Set(kFloat, kLargestNarrowLevel));
    return hn::Or(hn::ConvertTo(kInt, steps), hn::BitCast(kInt, hn::ShiftRight<24>(hn::BitCast(Tag<std::uint32_t>(), signs_of(x)))));
  }

  HWY_ALIGN std::uint8_t stored_[kLevelBlock];
  ByteBlock levels_, excess_;
  BlockBits nonzero_, negative_;
};

// Levels of any size.
class WideBlock {
 public:
  HWY_INLINE WideBlock(const float* values, float inverse) {
    HWY_ALIGN std::int8_t signs[kLevelBlock];
    HWY_ALIGN std::uint8_t ones[kLevelBlock];
    auto excess = hn::Zero(kInt), largest = hn::Zero(kInt);
    for (std::size_t i = 0; i < kFloatVectors; ++i) {
      const auto x = hn::LoadU(kFloat, values + i * kWidth<float>);
      const auto steps = hn::Min(steps_of(hn::Abs(x), inverse), hn::Set(kFloat, static_cast<float>(kLargestLevel)));
      const auto level = hn::ConvertTo(kInt, steps);
      excess = hn::Add(excess, above_one(level));
      largest = hn::Max(largest, level);
      hn::Store(level, kInt, levels_ + i * kWidth<float>);
      store_bytes(hn::Min(level, hn::Set(kInt, 1)), ones, i);
      store_bytes(hn::ShiftRight<31>(hn::BitCast(kInt, x)), signs, i);
    }
    excess_ = static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(kInt, excess)));
    largest_ = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(kInt, largest)));
    nonzero_ = nonzero_bits(load_block(ones));
    negative_ = nonzero_bits(load_block(reinterpret_cast<const std::uint8_t*>(signs)));
  }

  BlockBits nonzero() const { return nonzero_; }
  BlockBits negative() const { return negative_; }
  std::uint32_t excess() const { return excess_; }
  unsigned magnitude(std::uint32_t count, std::uint32_t excess) const {
    return magnitude_of(levels_, count, excess, [&](std::uint32_t least) { return largest_ > least; });
  }
  std::uint32_t level(std::size_t i) const { return static_cast<std::uint32_t>(levels_[i]); }

  // Of q - 1 what is above the low bits, and bytes that these are taken from. Levels beyond all are exact, whatever their block's magnitude.
  HWY_INLINE void write_unary(unsigned low_bits, std::uint8_t* numbers) {
    HWY_ALIGN std::uint8_t bytes[3][kLevelBlock];
    for (std::size_t i = 0; i < kFloatVectors; ++i) {
      const auto level = hn::Load(kInt, levels_ + i * kWidth<float>);
      const auto beyond = hn::Gt(level, hn::Set(kInt, static_cast<std::int32_t>(kLargestLevel - 1)));
      const auto excess = above_one(level);
      const auto high = hn::ShiftRightSame(excess, static_cast<int>(low_bits));
      const auto byte = hn::Set(kInt, 0xFF);
      store_bytes(hn::And(excess, byte), bytes[0], i);
      store_bytes(hn::And(hn::ShiftRight<8>(excess), byte), bytes[1], i);
      store_bytes(hn::ShiftRight<16>(excess), bytes[2], i);
      store_bytes(hn::IfThenElse(beyond, byte, hn::Min(high, byte)), numbers, i);
    }
    for (std::size_t byte = 0; byte < std::size(low_); ++byte) low_[byte] = load_block(bytes[byte]);
  }
  HWY_INLINE BlockBits low_plane(unsigned j) const { return bit_plane(low_[j / 8], j % 8); }

  HWY_INLINE void leave_residual(const SplitState& state, const float* values, std::size_t n, float offset, float* residual) const {
    const auto level_at = [this](std::size_t i) HWY_ATTR { return hn::Load(kInt, levels_ + i); };
    write_residual(state, level_at, values, n, offset, residual);
  }

 private:
  static HWY_INLINE Vector<std::int32_t> above_one(Vector<std::int32_t> level) {
    return hn::Max(hn::Sub(level, hn::Set(kInt, 1)), hn::Zero(kInt));
  }
  // Of at most 255: AVX2's DemoteTo() takes what is beyond 32,767 for negative.
  template <class Byte>
  static HWY_INLINE void store_bytes(Vector<std::int32_t> v, Byte* bytes, std::size_t i) {
    const hn::Rebind<Byte, Tag<float>> narrow;
    hn::StoreU(hn::DemoteTo(narrow, v), narrow, bytes + i * kWidth<float>);
  }

  HWY_ALIGN std::int32_t levels_[kLevelBlock];
  ByteBlock low_[3];
  BlockBits nonzero_, negative_;
  std::uint32_t excess_, largest_;
};

template <class Block>
void write_tails(SplitState& state, const Block& block, const BlockBits& tails, const float* values, float* residual) {
  const unsigned low_bits = low_bits_of(state.block->magnitude);
  for_each_one(tails, [&](std::size_t i) {
    const std::uint32_t level = block.level(i);
    const std::uint32_t tail = ((level - 1) >> low_bits) - static_cast<std::uint32_t>(kUnaryPlanes);
    const bool exact = tail >= kExactTail || level >= kLargestLevel;
    *state.tail++ = static_cast<std::byte>(exact ? kExactTail : tail);
    if (!exact) return;
    std::memcpy(state.tail, &values[i], sizeof values[i]);
    state.tail += sizeof values[i];
    if (residual != nullptr) residual[i] = 0;
  });
}

// A block that has a level which is not zero: values of which n are there and the others 0; residual may be null.
template <class Block>
HWY_INLINE void write_block(SplitState& state, Block& block, const float* values, std::size_t n, float* residual) {
  const BlockBits nonzero = block.nonzero();
  const unsigned count = count_ones(nonzero[0]) + count_ones(nonzero[1]);
  const unsigned magnitude = block.magnitude(count, block.excess());
  const unsigned low_bits = low_bits_of(magnitude);
  state.block->nonzero = nonzero;
  state.block->count = static_cast<std::uint8_t>(count);
  state.block->magnitude = static_cast<std::uint8_t>(magnitude);
  append(state.raw, block.negative(), nonzero);
  if (residual != nullptr) block.leave_residual(state, values, n, offset_of(magnitude), residual);
  if (magnitude == 0) return;
  block.write_unary(low_bits, state.unary->data());
  for (unsigned j = 0; j < low_bits; ++j) append(state.raw, block.low_plane(j), nonzero);
  const BlockBits tails = bits_above(load_block(state.unary->data()), kUnaryPlanes - 1);
  if (any(tails)) write_tails(state, block, tails, values, residual);
}

// The largest magnitude in each lane, as bits.
HWY_INLINE Vector<std::int32_t> largest_bits(const float* values) {
  auto largest = hn::Zero(kInt);
  for (std::size_t i = 0; i < kFloatVectors; ++i)
    largest = hn::Max(largest, hn::BitCast(kInt, hn::Abs(hn::LoadU(kFloat, values + i * kWidth<float>))));
  return largest;
}

HWY_INLINE void leave_all(const SplitState& state, const float* values, std::size_t n, float* residual) {
  const std::size_t whole = n - n % kWidth<float>;
  for (std::size_t i = 0; i < whole; i += kWidth<float>) store_left(state, hn::LoadU(kFloat, values + i), residual + i);
  std::copy(values + whole, values + n, residual + whole);
}

HWY_INLINE void split_block(SplitState& state, const float* values, std::size_t n, Vector<float> largest, float* residual) {
  const auto most = steps_of(largest, state.inverse);
  const auto reaches = [most](float level) HWY_ATTR { return !hn::AllFalse(kFloat, hn::Ge(most, hn::Set(kFloat, level))); };
  if (!reaches(1)) {
    *state.block = {};
    if (residual != nullptr) leave_all(state, values, n, residual);
  } else if (!reaches(kLargestNarrowLevel + 1)) {
    const NarrowBlock narrow(values, state.inverse);
    write_block(state, narrow, values, n, residual);
  } else {
    WideBlock wide(values, state.inverse);
    write_block(state, wide, values, n, residual);
  }
}

// Where blocks of values come from: block(begin, n, padded) is the one that begins there, of which n values are there and the others 0.
class StoredBlocks {
 public:
  explicit StoredBlocks(std::span<const float> values) : values_(values.data()) {}
  HWY_INLINE const float* block(std::size_t begin, std::size_t n, float* padded) const {
    const float* const block = values_ + begin;
    if (n == kLevelBlock) {
      prefetch_block(block, kAhead * kLevelBlock);
      return block;
    }
    std::fill(std::copy_n(block, n, padded), padded + kLevelBlock, 0.0F);
    return padded;
  }

 private:
  const float* values_;
};
class OpenedBlocks {
 public:
  explicit OpenedBlocks(const Unopened& values) : values_(values), opening_(values.scale) {}
  HWY_INLINE const float* block(std::size_t begin, std::size_t n, float* padded) {
    const Unopened here = values_.part(begin, n);
    open_groups(opening_, here.gradient, here.residual, std::span(padded, n));
    if (n < kLevelBlock) std::fill(padded + n, padded + kLevelBlock, 0.0F);
    return padded;
  }
  Opened total() const { return opening_.total(); }

 private:
  const Unopened& values_;
  Opening<Fp32> opening_;
};

template <class Blocks>
SplitTotals split_all(Blocks& blocks, std::size_t count, float step, const SplitLevels& out, std::span<float> residual, bool past_caches) {
  const bool begins_a_line = reinterpret_cast<std::uintptr_t>(residual.data()) % kLineBytes == 0;
  SplitState state{out.blocks.data(), out.unary.data(), BitAppender(out.raw.data()), out.tails.data(), 1.0F / step, step, past_caches && begins_a_line};
  SplitTotals totals;
  auto largest = hn::Zero(kInt);
  for (std::size_t begin = 0; begin < count; begin += kLevelBlock, ++state.block, ++state.unary) {
    const std::size_t n = std::min(kLevelBlock, count - begin);
    HWY_ALIGN float padded[kLevelBlock];
    const float* const block = blocks.block(begin, n, padded);
    float* const left = residual.empty() ? nullptr : residual.data() + begin;
    const auto here = largest_bits(block);
    largest = hn::Max(largest, here);
    split_block(state, block, n, hn::BitCast(kFloat, here), left);
    totals.nonzero += state.block->count;
  }
  if (state.past_caches) hwy::FlushStream();
  state.raw.finish();
  totals.raw_bits = state.raw.bits();
  totals.tail_bytes = static_cast<std::size_t>(state.tail - out.tails.data());
  totals.finite = hn::GetLane(hn::MaxOfLanes(kInt, largest)) < kInfinityBits;
  return totals;
}

SplitTotals split_levels(std::span<const float> values, float step, const SplitLevels& out, std::span<float> residual, bool past_caches) {
  StoredBlocks blocks(values);
  return split_all(blocks, values.size(), step, out, residual, past_caches);
}

SplitTotals open_and_split(const Unopened& values, float step, const SplitLevels& out, std::span<float> residual, bool past_caches, Opened& opened) {
  OpenedBlocks blocks(values);
  const SplitTotals totals = split_all(blocks, values.gradient.size(), step, out, residual, past_caches);
  opened = blocks.total();
  return totals;
}

PlaneTotals split_plane(std::span<const UnaryNumbers> unary, std::span<BlockBits> asked, std::span<std::uint16_t> active, std::size_t plane,
                        BitAppender& string) {
  BitAppender appender = string;  // kept in registers
  PlaneTotals totals;
  for (const std::uint16_t b : active) {
    const BlockBits set = bits_above(load_block(unary[b].data()), static_cast<std::uint8_t>(plane));
    append(appender, set, asked[b]);
    asked[b] = set;
    totals.set += count_ones(set[0]) + count_ones(set[1]);
    active[totals.active] = b;
    totals.active += any(set) ? 1 : 0;
  }
  string = appender;
  return totals;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {
HWY_EXPORT(split_levels);
HWY_EXPORT(open_and_split);
HWY_EXPORT(split_plane);

SplitTotals split_levels(std::span<const float> values, float step, const SplitLevels& out, std::span<float> residual, bool past_caches) {
  return HWY_DYNAMIC_DISPATCH(split_levels)(values, step, out, residual, past_caches);
}
SplitTotals open_and_split(const Unopened& values, float step, const SplitLevels& out, std::span<float> residual, bool past_caches, Opened& opened) {
  return HWY_DYNAMIC_DISPATCH(open_and_split)(values, step, out, residual, past_caches, opened);
}
PlaneTotals split_plane(std::span<const UnaryNumbers> unary, std::span<BlockBits> asked, std::span<std::uint16_t> active, std::size_t plane,
                        BitAppender& string) {
  return HWY_DYNAMIC_DISPATCH(split_plane)(unary, asked, active, plane, string);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
