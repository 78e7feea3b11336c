#include "kernels/level_planes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "kernels/bit_string.h"
#include "kernels/level_magnitude.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/split_levels.cc"
#include "hwy/foreach_target.h"  // must come before the next four
#include "hwy/highway.h"
#include "kernels/bit_deposit-inl.h"
#include "kernels/groups-inl.h"
#include "kernels/level_blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr std::int32_t kInfinityBits = 0x7F800000;
constexpr float kRounding = 0.4F;
constexpr int kLargestNarrowLevel = 127;  // signed bytes

// Where split_levels() writes.
struct SplitState {
  LevelBlock* block;
  std::array<PlaneString, kUnaryPlanes>* unary;
  BitAppender raw;
  std::byte* tail;
  float inverse, step;
};

HWY_INLINE PlaneString extract_string(const BlockBits& bits, const BlockBits& of) {
  return {{extract(bits[0], of[0]), extract(bits[1], of[1])},
          {static_cast<std::uint8_t>(count_ones(of[0])), static_cast<std::uint8_t>(count_ones(of[1]))}};
}
HWY_INLINE void append(BitAppender& raw, const PlaneString& string) {
  raw.append(string.bits[0], string.counts[0]);
  raw.append(string.bits[1], string.counts[1]);
}

// The levels of at most 127 of one block, in vectors.
class NarrowBlock {
 public:
  HWY_INLINE NarrowBlock(const float* values, float inverse) {
    for (std::size_t i = 0; i < kFloatVectors; ++i) {
      const auto x = hn::LoadU(kFloat, values + i * kWidth<float>);
      const auto t = hn::Add(hn::Mul(hn::Abs(x), hn::Set(kFloat, inverse)), hn::Set(kFloat, kRounding));
      hn::StoreU(hn::DemoteTo(Eighth(), hn::ConvertTo(kInt, hn::Or(t, signs_of(x)))), Eighth(), levels_ + i * kWidth<float>);
    }
    ByteBlock levels;
    for (std::size_t i = 0; i < kByteVectors; ++i) {
      const auto level = hn::Load(SignedBytes(), levels_ + i * kByteLanes);
      levels.vectors[i] = hn::BitCast(Bytes(), level);
      high_.vectors[i] = hn::BitCast(Bytes(), hn::Abs(level));
    }
    negative_ = levels.bits_where([](ByteVector v) HWY_ATTR {
      return hn::RebindMask(Bytes(), hn::Lt(hn::BitCast(SignedBytes(), v), hn::Zero(SignedBytes())));
    });
    nonzero_ = nonzero_bits(high_);
    for (std::size_t i = 0; i < kByteVectors; ++i) {
      high_.vectors[i] = hn::SaturatedSub(high_.vectors[i], hn::Set(Bytes(), 1));
      excess_ += sum_of(high_.vectors[i]);
    }
  }

  BlockBits nonzero() const { return nonzero_; }
  BlockBits negative() const { return negative_; }
  std::uint32_t excess() const { return excess_; }
  unsigned magnitude(std::uint32_t count, std::uint32_t largest) const { return magnitude_of(levels_, count, excess_, largest); }
  std::uint32_t level(std::size_t i) const { return static_cast<std::uint32_t>(std::abs(int{levels_[i]})); }

  // What is above the low bits of q - 1.
  HWY_INLINE void split_at(unsigned low_bits) {
    low_ = high_;
    if (low_bits == 0) return;
    const auto keep = hn::Set(Bytes(), static_cast<std::uint8_t>(0xFFU >> low_bits));
    for (ByteVector& v : high_.vectors) {
      if constexpr (kByteLanes == 1) {
        v = hn::Set(Bytes(), static_cast<std::uint8_t>(hn::GetLane(v) >> low_bits));
      } else {
        const auto words = hn::BitCast(hn::Repartition<std::uint16_t, Bytes>(), v);
        v = hn::And(hn::BitCast(Bytes(), hn::ShiftRightSame(words, static_cast<int>(low_bits))), keep);
      }
    }
  }
  HWY_INLINE BlockBits low_plane(unsigned j) const { return bit_plane(low_, j); }
  HWY_INLINE BlockBits next_unary_plane() { return take_unary_plane(high_); }

  HWY_INLINE void leave_residual(const float* values, std::size_t n, float offset, float step, float* residual) const {
    HWY_ALIGN float left[kLevelBlock];
    float* const out = n == kLevelBlock ? residual : left;
    for (std::size_t i = 0; i < kFloatVectors; ++i) {
      const auto x = hn::LoadU(kFloat, values + i * kWidth<float>);
      const auto level = hn::ConvertTo(kFloat, hn::PromoteTo(kInt, hn::LoadU(Eighth(), levels_ + i * kWidth<float>)));
      hn::StoreU(hn::Sub(x, decoded_of(level, offset, step)), kFloat, out + i * kWidth<float>);
    }
    if (n < kLevelBlock) std::copy_n(left, n, residual);
  }

 private:
  static HWY_INLINE std::uint32_t sum_of(ByteVector v) {
    if constexpr (kByteLanes < 8) {
      return hn::GetLane(v);
    } else {
      const auto sums = hn::SumsOf8(v);
      return static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(hn::DFromV<decltype(sums)>(), sums)));
    }
  }

  HWY_ALIGN std::int8_t levels_[kLevelBlock];
  ByteBlock low_, high_;
  BlockBits nonzero_, negative_;
  std::uint32_t excess_ = 0;
};

// Levels of any size.
class WideBlock {
 public:
  HWY_INLINE WideBlock(const float* values, float inverse) {
    HWY_ALIGN std::int8_t signs[kLevelBlock];
    HWY_ALIGN std::uint8_t ones[kLevelBlock];
    auto excess = hn::Zero(kInt);
    for (std::size_t i = 0; i < kFloatVectors; ++i) {
      const auto x = hn::LoadU(kFloat, values + i * kWidth<float>);
      const auto t = hn::Add(hn::Mul(hn::Abs(x), hn::Set(kFloat, inverse)), hn::Set(kFloat, kRounding));
      const auto level = hn::ConvertTo(kInt, hn::Min(t, hn::Set(kFloat, static_cast<float>(kLargestLevel))));
      excess = hn::Add(excess, above_one(level));
      hn::Store(level, kInt, levels_ + i * kWidth<float>);
      store_bytes(hn::Min(level, hn::Set(kInt, 1)), ones, i);
      store_bytes(hn::ShiftRight<31>(hn::BitCast(kInt, x)), signs, i);
    }
    excess_ = static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(kInt, excess)));
    nonzero_ = nonzero_bits(load_block(ones));
    negative_ = nonzero_bits(load_block(reinterpret_cast<const std::uint8_t*>(signs)));
  }

  BlockBits nonzero() const { return nonzero_; }
  BlockBits negative() const { return negative_; }
  std::uint32_t excess() const { return excess_; }
  unsigned magnitude(std::uint32_t count, std::uint32_t largest) const { return magnitude_of(levels_, count, excess_, largest); }
  std::uint32_t level(std::size_t i) const { return static_cast<std::uint32_t>(levels_[i]); }

  // Bytes of q - 1 that low bits are taken from, and what is above them. Levels beyond all are exact, whatever their block's magnitude.
  HWY_INLINE void split_at(unsigned low_bits) {
    HWY_ALIGN std::uint8_t bytes[4][kLevelBlock];
    for (std::size_t i = 0; i < kFloatVectors; ++i) {
      const auto level = hn::Load(kInt, levels_ + i * kWidth<float>);
      const auto beyond = hn::Gt(level, hn::Set(kInt, static_cast<std::int32_t>(kLargestLevel - 1)));
      const auto excess = above_one(level);
      const auto high = hn::ShiftRightSame(excess, static_cast<int>(low_bits));
      const auto byte = hn::Set(kInt, 0xFF);
      store_bytes(hn::And(excess, byte), bytes[0], i);
      store_bytes(hn::And(hn::ShiftRight<8>(excess), byte), bytes[1], i);
      store_bytes(hn::ShiftRight<16>(excess), bytes[2], i);
      store_bytes(hn::IfThenElse(beyond, byte, hn::Min(high, byte)), bytes[3], i);
    }
    for (std::size_t byte = 0; byte < std::size(low_); ++byte) low_[byte] = load_block(bytes[byte]);
    high_ = load_block(bytes[3]);
  }
  HWY_INLINE BlockBits low_plane(unsigned j) const { return bit_plane(low_[j / 8], j % 8); }
  HWY_INLINE BlockBits next_unary_plane() { return take_unary_plane(high_); }

  HWY_INLINE void leave_residual(const float* values, std::size_t n, float offset, float step, float* residual) const {
    HWY_ALIGN float left[kLevelBlock];
    for (std::size_t i = 0; i < kFloatVectors; ++i) {
      const auto x = hn::LoadU(kFloat, values + i * kWidth<float>);
      const auto level = hn::ConvertTo(kFloat, hn::Load(kInt, levels_ + i * kWidth<float>));
      hn::Store(hn::Sub(x, decoded_of(hn::Or(level, signs_of(x)), offset, step)), kFloat, left + i * kWidth<float>);
    }
    std::copy_n(left, n, residual);
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
  ByteBlock low_[3], high_;
  BlockBits nonzero_, negative_;
  std::uint32_t excess_;
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

// Values of a block of which n are there and the others 0; residual may be null.
template <class Block>
HWY_INLINE void write_block(SplitState& state, Block&& block, const float* values, std::size_t n, std::uint32_t largest, float* residual) {
  const BlockBits nonzero = block.nonzero();
  const unsigned count = count_ones(nonzero[0]) + count_ones(nonzero[1]);
  const unsigned magnitude = block.magnitude(count, largest - 1);
  const unsigned low_bits = low_bits_of(magnitude);
  LevelBlock& written = *state.block;
  written = {nonzero, static_cast<std::uint8_t>(count), static_cast<std::uint8_t>(magnitude), 0};
  block.split_at(low_bits);
  append(state.raw, extract_string(block.negative(), nonzero));
  for (unsigned j = 0; j < low_bits; ++j) append(state.raw, extract_string(block.low_plane(j), nonzero));

  BlockBits tails = {};
  if (magnitude > 0) {
    BlockBits of = nonzero;
    for (std::size_t l = 0; l < kUnaryPlanes && any(of); ++l) {
      const BlockBits plane = block.next_unary_plane();
      (*state.unary)[l] = extract_string(plane, of);
      of = plane;
      ++written.planes;
    }
    if (written.planes == kUnaryPlanes) tails = of;
  }
  if (residual != nullptr) block.leave_residual(values, n, offset_of(magnitude), state.step, residual);
  if (any(tails)) write_tails(state, block, tails, values, residual);
}

// The largest magnitude of a block, as bits.
HWY_INLINE std::int32_t largest_bits(const float* values) {
  auto largest = hn::Zero(kInt);
  for (std::size_t i = 0; i < kFloatVectors; ++i) {
    const auto x = hn::LoadU(kFloat, values + i * kWidth<float>);
    largest = hn::Max(largest, hn::BitCast(kInt, hn::Abs(x)));
  }
  return hn::GetLane(hn::MaxOfLanes(kInt, largest));
}

HWY_INLINE void split_block(SplitState& state, const float* values, std::size_t n, std::int32_t largest, float* residual) {
  const float top = largest < kInfinityBits ? std::bit_cast<float>(largest) * state.inverse + kRounding : 0;
  if (top < 1) {
    *state.block = {};
    if (residual != nullptr) std::copy_n(values, n, residual);
  } else if (top < static_cast<float>(kLargestNarrowLevel + 1)) {
    write_block(state, NarrowBlock(values, state.inverse), values, n, static_cast<std::uint32_t>(top), residual);
  } else {
    write_block(state, WideBlock(values, state.inverse), values, n,
                static_cast<std::uint32_t>(std::min(top, static_cast<float>(kLargestLevel))), residual);
  }
}

SplitTotals split_levels(std::span<const float> values, float step, const SplitLevels& out, std::span<float> residual) {
  SplitState state{out.blocks.data(), out.unary.data(), BitAppender(out.raw.data()), out.tails.data(), 1.0F / step, step};
  SplitTotals totals;
  std::int32_t largest = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += kLevelBlock, ++state.block, ++state.unary) {
    const std::size_t n = std::min(kLevelBlock, values.size() - begin);
    const float* block = values.data() + begin;
    float* const left = residual.empty() ? nullptr : residual.data() + begin;
    HWY_ALIGN float padded[kLevelBlock];
    if (n < kLevelBlock) {
      std::fill(std::copy_n(block, n, padded), padded + kLevelBlock, 0.0F);
      block = padded;
    } else {
      prefetch_block_beyond(block);
    }
    const std::int32_t here = largest_bits(block);
    largest = std::max(largest, here);
    split_block(state, block, n, here, left);
    totals.nonzero += state.block->count;
  }
  state.raw.finish();
  totals.raw_bits = state.raw.bits();
  totals.tail_bytes = static_cast<std::size_t>(state.tail - out.tails.data());
  totals.finite = largest < kInfinityBits;
  return totals;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {
HWY_EXPORT(split_levels);

SplitTotals split_levels(std::span<const float> values, float step, const SplitLevels& out, std::span<float> residual) {
  return HWY_DYNAMIC_DISPATCH(split_levels)(values, step, out, residual);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
