#include "kernels/level_planes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "kernels/bit_string.h"
#include "kernels/level_magnitude.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/join_levels.cc"
#include "hwy/foreach_target.h"  // must come before the next five
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/bit_deposit-inl.h"
#include "kernels/groups-inl.h"
#include "kernels/level_blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr unsigned kMostNarrowLowBits = 3;

// Unary planes lie one in the other, so digit d of their number is the parity of how many of every 2^d-th there are.
HWY_INLINE void count_plane(JoinedBlock& block, std::size_t number, const BlockBits& set) {
  for (std::size_t digit = 0; number % (std::size_t{1} << digit) == 0; ++digit)
    for (std::size_t word = 0; word < set.size(); ++word)
      block.unary[digit][word] = number == std::size_t{1} << digit ? set[word] : block.unary[digit][word] ^ set[word];
  block.planes = static_cast<std::uint8_t>(number);
}

PlaneTotals join_plane(std::span<JoinedBlock> blocks, std::span<BlockBits> asked, std::span<std::uint16_t> active, std::size_t plane,
                       const std::byte* bits, std::size_t position) {
  PlaneTotals totals;
  for (const std::uint16_t b : active) {
    BlockBits& set = asked[b];
    for (std::uint64_t& word : set) {
      const std::uint64_t of = word;
      word = deposit(bits_at(bits, position), of);
      position += count_ones(of);
    }
    const unsigned ones = count_ones(set[0]) + count_ones(set[1]);
    if (ones == 0) continue;
    count_plane(blocks[b], plane + 1, set);
    totals.set += ones;
    active[totals.active++] = b;
  }
  return totals;
}

// The entries of the last plane.
HWY_INLINE BlockBits tails_of(const JoinedBlock& block) {
  if (block.planes < kUnaryPlanes) return {};
  return {block.unary[2][0] & block.unary[3][0], block.unary[2][1] & block.unary[3][1]};
}

JoinTotals count_joined(std::span<const JoinedBlock> blocks) {
  JoinTotals totals;
  for (const JoinedBlock& block : blocks) {
    totals.raw_bits += std::size_t{count_ones(block.nonzero[0]) + count_ones(block.nonzero[1])} * (1 + low_bits_of(block.magnitude));
    const BlockBits tails = tails_of(block);
    totals.tails += count_ones(tails[0]) + count_ones(tails[1]);
  }
  return totals;
}

// What is read beside the planes, in the blocks' order.
struct JoinState {
  const std::byte* raw;
  std::size_t position;
  const std::byte* tail;
  float step, weight;

  HWY_INLINE BlockBits take(const BlockBits& places) {
    BlockBits bits;
    for (std::size_t word = 0; word < bits.size(); ++word) {
      bits[word] = deposit(bits_at(raw, position), places[word]);
      position += count_ones(places[word]);
    }
    return bits;
  }
};

// A block's signs and the planes of q - 1, least first.
struct BinaryPlanes {
  BlockBits negative;
  BlockBits planes[kMagnitudes - 1 - kUnitMagnitude + kUnaryDigits];
  unsigned count;
};

HWY_INLINE BinaryPlanes binary_planes(const JoinedBlock& block, JoinState& state) {
  BinaryPlanes binary;
  binary.negative = state.take(block.nonzero);
  const unsigned low_bits = low_bits_of(block.magnitude), digits = static_cast<unsigned>(std::bit_width(block.planes));
  for (unsigned j = 0; j < low_bits; ++j) binary.planes[j] = state.take(block.nonzero);
  for (unsigned digit = 0; digit < digits; ++digit) binary.planes[low_bits + digit] = block.unary[digit];
  binary.count = low_bits + digits;
  return binary;
}

struct StoreValues {
  static constexpr bool kTouchesAll = true;
  static constexpr unsigned kSparse = 8;  // levels that are sooner decoded one by one
  static HWY_INLINE void nothing(float* out, std::size_t n) { std::fill_n(out, n, 0.0F); }
  static HWY_INLINE void one(float* out, float value) { *out = value; }
  static HWY_INLINE void many(float* out, Vector<float> values) { hn::StoreU(values, kFloat, out); }
};
struct AddValues {
  static constexpr bool kTouchesAll = false;
  static constexpr unsigned kSparse = 8;
  static HWY_INLINE void nothing(float*, std::size_t) {}
  static HWY_INLINE void one(float* out, float value) { *out += value; }
  static HWY_INLINE void many(float* out, Vector<float> values) { hn::StoreU(hn::Add(hn::LoadU(kFloat, out), values), kFloat, out); }
};
// Into memory that vectors are read from next, which would wait for what was written one by one.
struct StoreVectors : StoreValues {
  static constexpr unsigned kSparse = 0;
};

HWY_INLINE bool bit_of(const BlockBits& bits, std::size_t i) { return (bits[i / 64] >> (i % 64) & 1) != 0; }

// A level that is not zero and has, or has not, a tail; or the value that it stands for.
struct Entry {
  bool exact;
  float value;
};
HWY_INLINE Entry entry_of(const BinaryPlanes& binary, unsigned low_bits, bool has_tail, std::size_t i, JoinState& state) {
  std::uint32_t level = 1;
  for (unsigned j = 0; j < binary.count; ++j) level += static_cast<std::uint32_t>(bit_of(binary.planes[j], i)) << j;
  Entry entry{false, 0};
  if (has_tail) {
    const auto tail = std::to_integer<std::uint32_t>(*state.tail++);
    if (tail == kExactTail) {
      std::memcpy(&entry.value, state.tail, sizeof entry.value);
      state.tail += sizeof entry.value;
      entry.exact = true;
      return entry;
    }
    level += tail << low_bits;
  }
  entry.value = bit_of(binary.negative, i) ? -static_cast<float>(level) : static_cast<float>(level);
  return entry;
}

// Few levels that are not zero.
template <class Operation>
HWY_INLINE void join_sparse(const JoinedBlock& block, const BinaryPlanes& binary, JoinState& state, std::size_t n, float* out) {
  const float offset = offset_of(block.magnitude);
  const BlockBits tails = tails_of(block);
  Operation::nothing(out, n);
  for_each_one(block.nonzero, [&](std::size_t i) {
    const Entry entry = entry_of(binary, low_bits_of(block.magnitude), bit_of(tails, i), i, state);
    const float decoded = std::copysign(decoded_magnitude(std::fabs(entry.value), offset, state.step), entry.value);
    Operation::one(out + i, state.weight * (entry.exact ? entry.value : decoded));
  });
}

// Writes what levels decode to: load(i) is the i-th vector of those of a block, with their signs.
template <class Operation, class Load>
HWY_INLINE void join_vectors(const Load& load_levels, float offset, const JoinState& state, std::size_t n, float* out) {
  HWY_ALIGN float padded[kLevelBlock];
  float* const to = n == kLevelBlock ? out : padded;
  if (n < kLevelBlock) std::fill(std::copy_n(out, n, padded), padded + kLevelBlock, 0.0F);
  for (std::size_t i = 0; i < kFloatVectors; ++i) {
    float* const at = to + i * kWidth<float>;
    const auto value = hn::Mul(decoded_of(load_levels(i), offset, state.step), hn::Set(kFloat, state.weight));
    Operation::many(at, value);
  }
  if (n < kLevelBlock) std::copy_n(padded, n, out);
}

// The number that planes spell in each byte.
HWY_INLINE ByteVector number_of(const BlockBits* planes, unsigned count, std::size_t vector) {
  auto number = hn::Zero(Bytes());
  for (unsigned j = 0; j < count; ++j)
    number = hn::Or(number, hn::IfThenElseZero(lane_mask(planes[j], vector), hn::Set(Bytes(), static_cast<std::uint8_t>(1U << j))));
  return number;
}
// 1 or -1 where the level is not zero, else 0.
HWY_INLINE ByteVector units_of(const JoinedBlock& block, const BinaryPlanes& binary, std::size_t vector) {
  const auto negative = hn::VecFromMask(Bytes(), lane_mask(binary.negative, vector));
  return hn::IfThenElseZero(lane_mask(block.nonzero, vector), hn::Or(negative, hn::Set(Bytes(), 1)));
}

template <class Operation>
HWY_INLINE void join_narrow(const JoinedBlock& block, const BinaryPlanes& binary, const JoinState& state, std::size_t n, float* out) {
  HWY_ALIGN std::int8_t levels[kLevelBlock];
  for (std::size_t i = 0; i < kByteVectors; ++i) {
    const auto level = hn::Add(number_of(binary.planes, binary.count, i), hn::Set(Bytes(), 1));
    const auto sign = hn::VecFromMask(Bytes(), lane_mask(binary.negative, i));
    const auto with_sign = hn::IfThenElseZero(lane_mask(block.nonzero, i), hn::Sub(hn::Xor(level, sign), sign));
    hn::StoreU(hn::BitCast(SignedBytes(), with_sign), SignedBytes(), levels + i * kByteLanes);
  }
  const auto load_levels = [&levels](std::size_t i) HWY_ATTR {
    return hn::ConvertTo(kFloat, hn::PromoteTo(kInt, hn::LoadU(Eighth(), levels + i * kWidth<float>)));
  };
  join_vectors<Operation>(load_levels, offset_of(block.magnitude), state, n, out);
}

// Levels of more than a byte, or tails. An exact value counts as 0 at first.
template <class Operation>
HWY_INLINE void join_wide(const JoinedBlock& block, const BinaryPlanes& binary, JoinState& state, std::size_t n, float* out) {
  constexpr unsigned kBytes = (std::size(BinaryPlanes().planes) + 7) / 8;
  HWY_ALIGN std::uint8_t bytes[kBytes][kLevelBlock];
  HWY_ALIGN std::int8_t units[kLevelBlock];
  for (std::size_t i = 0; i < kByteVectors; ++i) {
    for (unsigned byte = 0; byte < kBytes; ++byte) {
      const unsigned count = std::min(8U, binary.count - std::min(binary.count, 8 * byte));
      hn::StoreU(number_of(binary.planes + 8 * byte, count, i), Bytes(), bytes[byte] + i * kByteLanes);
    }
    hn::StoreU(hn::BitCast(SignedBytes(), units_of(block, binary, i)), SignedBytes(), units + i * kByteLanes);
  }
  const hn::Rebind<std::uint8_t, Tag<float>> narrow;
  HWY_ALIGN float levels[kLevelBlock];
  for (std::size_t i = 0; i < kFloatVectors; ++i) {
    const auto promoted = [&](std::size_t byte) HWY_ATTR { return hn::PromoteTo(kInt, hn::LoadU(narrow, bytes[byte] + i * kWidth<float>)); };
    static_assert(kBytes == 4);
    const auto excess = hn::Or(hn::Or(promoted(0), hn::ShiftLeft<8>(promoted(1))),
                               hn::Or(hn::ShiftLeft<16>(promoted(2)), hn::ShiftLeft<24>(promoted(3))));
    const auto unit = hn::PromoteTo(kInt, hn::LoadU(Eighth(), units + i * kWidth<float>));
    const auto level = hn::ConvertTo(kFloat, hn::Add(excess, hn::Set(kInt, 1)));
    hn::Store(hn::Mul(level, hn::ConvertTo(kFloat, unit)), kFloat, levels + i * kWidth<float>);
  }
  std::uint8_t exact_places[kLevelBlock];
  float exact_values[kLevelBlock];
  std::size_t exact = 0;
  for_each_one(tails_of(block), [&](std::size_t i) {
    const Entry entry = entry_of(binary, low_bits_of(block.magnitude), true, i, state);
    levels[i] = entry.exact ? 0.0F : entry.value;
    exact_places[exact] = static_cast<std::uint8_t>(i);
    exact_values[exact] = entry.value;
    exact += entry.exact ? 1 : 0;
  });
  const auto load_levels = [&levels](std::size_t i) HWY_ATTR { return hn::Load(kFloat, levels + i * kWidth<float>); };
  join_vectors<Operation>(load_levels, offset_of(block.magnitude), state, n, out);
  for (std::size_t e = 0; e < exact; ++e) Operation::one(out + exact_places[e], state.weight * exact_values[e]);
}

template <class Operation>
HWY_INLINE void join_block(const JoinedBlock& block, JoinState& state, std::size_t n, float* out) {
  const BinaryPlanes binary = binary_planes(block, state);
  if (count_ones(block.nonzero[0]) + count_ones(block.nonzero[1]) <= Operation::kSparse) {
    join_sparse<Operation>(block, binary, state, n, out);
  } else if (block.planes == kUnaryPlanes || low_bits_of(block.magnitude) > kMostNarrowLowBits) {
    join_wide<Operation>(block, binary, state, n, out);
  } else {
    join_narrow<Operation>(block, binary, state, n, out);
  }
}

template <class Operation>
void join(std::span<const JoinedBlock> blocks, std::span<const std::uint16_t> places, const std::byte* raw, const std::byte* tails,
          float step, float weight, std::span<float> out) {
  constexpr std::size_t kAhead = 4;  // blocks, of those that are touched
  JoinState state{raw, 0, tails, step, weight};
  std::size_t done = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (Operation::kTouchesAll) prefetch_block(out.data(), (places[i] + kAhead) * kLevelBlock);
    else if (i + kAhead < places.size()) prefetch_block(out.data(), places[i + kAhead] * kLevelBlock);
    const std::size_t begin = places[i] * kLevelBlock, n = std::min(kLevelBlock, out.size() - begin);
    Operation::nothing(out.data() + done, begin - done);
    join_block<Operation>(blocks[i], state, n, out.data() + begin);
    done = begin + n;
  }
  Operation::nothing(out.data() + done, out.size() - done);
}

// Writes floats in their order, past the caches but for the lines in which they begin and end.
class LineWriter {
 public:
  explicit LineWriter(float* out) : held_(reinterpret_cast<std::uintptr_t>(out) / sizeof(float) % kLine), skipped_(held_), line_(out - held_) {}

  // Room for a block, to be filled before advance(), which takes n of it: all but in the last one.
  HWY_INLINE float* room() { return lines_ + held_; }
  HWY_INLINE void advance(std::size_t n) {
    if (n < kLevelBlock) {
      held_ += n;
      return;
    }
    for (std::size_t i = 0; i < kLevelBlock; i += kLine) {
      if (skipped_ > 0) write(std::exchange(skipped_, 0), kLine);
      else stream(i);
    }
    line_ += kLevelBlock;
    if (held_ > 0) std::copy_n(lines_ + kLevelBlock, kLine, lines_);
  }
  HWY_INLINE void zeros(std::size_t n) {
    for (; n > 0; n -= std::min(n, kLevelBlock)) {
      for (std::size_t i = 0; i < kLevelBlock; i += kWidth<float>) hn::StoreU(hn::Zero(kFloat), kFloat, room() + i);
      advance(std::min(n, kLevelBlock));
    }
  }
  void finish() {
    std::size_t i = 0;
    if (skipped_ == 0)
      for (; i + kLine <= held_; i += kLine) stream(i);
    write(std::max(i, skipped_), held_);
    hwy::FlushStream();
  }

 private:
  static constexpr std::size_t kLine = 64 / sizeof(float);

  HWY_INLINE void stream(std::size_t i) {
    for (std::size_t v = i; v < i + kLine; v += kWidth<float>) hn::Stream(hn::Load(kFloat, lines_ + v), kFloat, line_ + v);
  }
  void write(std::size_t begin, std::size_t end) { std::copy(lines_ + begin, lines_ + end, line_ + begin); }

  std::size_t held_;     // of lines_, which belong from line_ on
  std::size_t skipped_;  // of the first line's, which are not ours
  float* line_;
  HWY_ALIGN float lines_[kLevelBlock + kLine];
};

void join_levels_past_caches(std::span<const JoinedBlock> blocks, std::span<const std::uint16_t> places, const std::byte* raw,
                             const std::byte* tails, float step, float weight, std::span<float> out) {
  JoinState state{raw, 0, tails, step, weight};
  LineWriter writer(out.data());
  std::size_t done = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::size_t begin = places[i] * kLevelBlock, n = std::min(kLevelBlock, out.size() - begin);
    writer.zeros(begin - done);
    join_block<StoreVectors>(blocks[i], state, n, writer.room());
    writer.advance(n);
    done = begin + n;
  }
  writer.zeros(out.size() - done);
  writer.finish();
}

void join_levels(std::span<const JoinedBlock> blocks, std::span<const std::uint16_t> places, const std::byte* raw, const std::byte* tails,
                 float step, float weight, std::span<float> out) {
  join<StoreValues>(blocks, places, raw, tails, step, weight, out);
}
void join_levels_add(std::span<const JoinedBlock> blocks, std::span<const std::uint16_t> places, const std::byte* raw, const std::byte* tails,
                     float step, float weight, std::span<float> out) {
  join<AddValues>(blocks, places, raw, tails, step, weight, out);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {
HWY_EXPORT(join_plane);
HWY_EXPORT(count_joined);
HWY_EXPORT(join_levels);
HWY_EXPORT(join_levels_past_caches);
HWY_EXPORT(join_levels_add);

PlaneTotals join_plane(std::span<JoinedBlock> blocks, std::span<BlockBits> asked, std::span<std::uint16_t> active, std::size_t plane,
                       const std::byte* bits, std::size_t position) {
  return HWY_DYNAMIC_DISPATCH(join_plane)(blocks, asked, active, plane, bits, position);
}
float largest_decoded(const JoinedBlock& block, float step) {
  const unsigned high = block.planes + (block.planes == kUnaryPlanes ? kExactTail : 0), low_bits = low_bits_of(block.magnitude);
  return decoded_magnitude(static_cast<float>((std::uint32_t{high} + 1) << low_bits), offset_of(block.magnitude), step);
}
JoinTotals count_joined(std::span<const JoinedBlock> blocks) {
  return HWY_DYNAMIC_DISPATCH(count_joined)(blocks);
}
void join_levels(std::span<const JoinedBlock> blocks, std::span<const std::uint16_t> places, const std::byte* raw, const std::byte* tails,
                 float step, float weight, std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(join_levels)(blocks, places, raw, tails, step, weight, out);
}
void join_levels_past_caches(std::span<const JoinedBlock> blocks, std::span<const std::uint16_t> places, const std::byte* raw,
                             const std::byte* tails, float step, float weight, std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(join_levels_past_caches)(blocks, places, raw, tails, step, weight, out);
}
void join_levels_add(std::span<const JoinedBlock> blocks, std::span<const std::uint16_t> places, const std::byte* raw, const std::byte* tails,
                     float step, float weight, std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(join_levels_add)(blocks, places, raw, tails, step, weight, out);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
