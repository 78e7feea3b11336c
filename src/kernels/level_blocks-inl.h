// Blocks of levels in vectors: what splitting and joining them share. Included once a target.
#if defined(THINWIRE_KERNELS_LEVEL_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_LEVEL_BLOCKS_INL_H_
#undef THINWIRE_KERNELS_LEVEL_BLOCKS_INL_H_
#else
#define THINWIRE_KERNELS_LEVEL_BLOCKS_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/groups-inl.h"
#include "kernels/level_planes.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

using Bytes = hn::CappedTag<std::uint8_t, 64>;
using SignedBytes = hn::RebindToSigned<Bytes>;
using ByteVector = hn::Vec<Bytes>;
constexpr std::size_t kByteLanes = hn::MaxLanes(Bytes());
constexpr std::size_t kByteVectors = kLevelBlock / kByteLanes;
using LaneBits = std::conditional_t<kByteLanes >= 64, std::uint64_t,
                                    std::conditional_t<kByteLanes == 32, std::uint32_t,
                                                       std::conditional_t<kByteLanes == 16, std::uint16_t, std::uint8_t>>>;

HWY_INLINE LaneBits lane_bits(hn::Mask<Bytes> mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(Bytes(), mask, bytes);
  LaneBits bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}
HWY_INLINE hn::Mask<Bytes> lane_mask(const BlockBits& bits, std::size_t vector) {
  const std::uint64_t word = bits[vector * kByteLanes / 64] >> (vector * kByteLanes % 64);
  std::uint8_t bytes[8];
  std::memcpy(bytes, &word, sizeof word);
  return hn::LoadMaskBits(Bytes(), bytes);
}

// A byte for each entry of a block.
struct ByteBlock {
  ByteVector vectors[kByteVectors];

  // test(vector) is a mask.
  template <class Test>
  HWY_INLINE BlockBits bits_where(const Test& test) const {
    BlockBits bits = {};
    for (std::size_t i = 0; i < kByteVectors; ++i)
      bits[i * kByteLanes / 64] |= static_cast<std::uint64_t>(lane_bits(test(vectors[i]))) << (i * kByteLanes % 64);
    return bits;
  }
};
HWY_INLINE BlockBits nonzero_bits(const ByteBlock& block) {
  return block.bits_where([](ByteVector v) HWY_ATTR { return hn::Ne(v, hn::Zero(Bytes())); });
}

HWY_INLINE ByteBlock load_block(const std::uint8_t* bytes) {
  ByteBlock block;
  for (std::size_t i = 0; i < kByteVectors; ++i) block.vectors[i] = hn::LoadU(Bytes(), bytes + i * kByteLanes);
  return block;
}
HWY_INLINE BlockBits bit_plane(const ByteBlock& block, unsigned j) {
  const auto bit = hn::Set(Bytes(), static_cast<std::uint8_t>(1U << j));
  return block.bits_where([bit](ByteVector v) HWY_ATTR { return hn::TestBit(v, bit); });
}
HWY_INLINE BlockBits bits_above(const ByteBlock& block, std::uint8_t limit) {
  return block.bits_where([limit](ByteVector v) HWY_ATTR { return hn::Ne(hn::SaturatedSub(v, hn::Set(Bytes(), limit)), hn::Zero(Bytes())); });
}

constexpr Tag<std::int32_t> kInt{};
constexpr std::size_t kFloatVectors = kLevelBlock / kWidth<float>;
using Eighth = hn::Rebind<std::int8_t, Tag<float>>;  // as many signed bytes as a vector has floats

HWY_INLINE Vector<float> signs_of(Vector<float> x) { return hn::And(x, hn::SignBit(kFloat)); }

// Of levels with their signs: decoded_magnitude() with the sign, and 0 of 0.
HWY_INLINE Vector<float> decoded_of(Vector<float> level, float offset, float step) {
  const auto decoded = hn::Mul(hn::Add(level, hn::Xor(hn::Set(kFloat, offset), signs_of(level))), hn::Set(kFloat, step));
  return hn::IfThenElseZero(hn::Ne(level, hn::Zero(kFloat)), decoded);
}

HWY_INLINE bool any(const BlockBits& bits) { return (bits[0] | bits[1]) != 0; }

template <class Visit>
HWY_INLINE void for_each_one(const BlockBits& bits, const Visit& visit) {
  for (std::size_t word = 0; word < bits.size(); ++word)
    for (std::uint64_t left = bits[word]; left != 0; left &= left - 1)
      visit(word * 64 + static_cast<std::size_t>(std::countr_zero(left)));
}

// Every line of the block that begins at so many values from `first` on, where there may be none.
HWY_INLINE void prefetch_block(const float* first, std::size_t begin) {
  const auto block = reinterpret_cast<std::uintptr_t>(first) + begin * sizeof(float);
  for (std::size_t byte = 0; byte < kLevelBlock * sizeof(float); byte += 64) __builtin_prefetch(reinterpret_cast<const char*>(block + byte));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_LEVEL_BLOCKS_INL_H_
