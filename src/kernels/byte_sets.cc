#include "kernels/byte_sets.h"

#include <algorithm>
#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/byte_sets.cc"
#include "hwy/foreach_target.h"  // must come before the next one
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR
constexpr std::size_t kAtOnce = 1;
using Members = const ByteSet&;
HWY_INLINE std::uint32_t members_at(const ByteSet& set, const std::uint8_t* values) { return set.contains(*values) ? 1 : 0; }
#else
// Many sets' values come in short runs: longer vectors would be full of what is behind them.
using Bytes = hn::FixedTag<std::uint8_t, 16>;
constexpr std::size_t kAtOnce = hn::MaxLanes(Bytes());

class Members {
 public:
  HWY_INLINE explicit Members(const ByteSet& set) : below_128_(hn::Load(Bytes(), set.rows())), others_(hn::Load(Bytes(), set.rows() + 16)) {}
  HWY_INLINE hn::Mask<Bytes> among(hn::Vec<Bytes> values) const {
    HWY_ALIGN static constexpr std::uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const auto nibble = hn::Set(Bytes(), 15);
    const auto low = hn::And(values, nibble);
    const auto high = hn::And(hn::BitCast(Bytes(), hn::ShiftRight<4>(hn::BitCast(hn::Repartition<std::uint16_t, Bytes>(), values))), nibble);
    const auto row = hn::IfThenElse(hn::Lt(values, hn::Set(Bytes(), 128)), hn::TableLookupBytes(below_128_, low), hn::TableLookupBytes(others_, low));
    return hn::TestBit(row, hn::TableLookupBytes(hn::Load(Bytes(), kBits), high));
  }

 private:
  hn::Vec<Bytes> below_128_, others_;
};
// Bit i: whether values[i] is one.
HWY_INLINE std::uint32_t members_at(const Members& members, const std::uint8_t* values) {
  std::uint8_t bits[8] = {};
  hn::StoreMaskBits(Bytes(), members.among(hn::LoadU(Bytes(), values)), bits);
  return bits[0] | static_cast<std::uint32_t>(bits[1]) << 8;
}
#endif

std::size_t take_out(std::span<std::uint8_t> values, const ByteSet& set, std::uint8_t instead, std::uint8_t* taken) {
  const Members members(set);
  std::uint8_t* next = taken;
  const auto take = [&](std::uint32_t found, std::uint8_t* from) {
    for (; found != 0; found &= found - 1) {
      std::uint8_t& value = from[std::countr_zero(found)];
      *next++ = value;
      value = instead;
    }
  };
  std::size_t i = 0;
  for (; i + kAtOnce <= values.size(); i += kAtOnce) take(members_at(members, values.data() + i), values.data() + i);
  if (const std::size_t left = values.size() - i; left > 0) {
    std::uint8_t padded[kAtOnce] = {};
    std::copy_n(values.data() + i, left, padded);
    take(members_at(members, padded) & ((1U << left) - 1), values.data() + i);
  }
  return static_cast<std::size_t>(next - taken);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {
HWY_EXPORT(take_out);

std::size_t take_out(std::span<std::uint8_t> values, const ByteSet& set, std::uint8_t instead, std::uint8_t* taken) {
  return HWY_DYNAMIC_DISPATCH(take_out)(values, set, instead, taken);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
