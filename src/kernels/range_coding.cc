#include "kernels/range_coding.h"

#include <algorithm>
#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/range_coding.cc"
#include "hwy/foreach_target.h"  // must come before the next one
#include "hwy/highway.h"
#include "kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

std::uint16_t* range_put_run(const RangeTable& table, RangeStates& states, std::uint16_t* next, std::span<const std::uint8_t> values) {
  for (std::size_t i = values.size(); i-- > 0;) range_put(table, states[i % kRangeLanes], next, values[i]);
  return next;
}

const std::byte* range_take_run(const RangeTable& table, RangeStates& states, const std::byte* next, const std::byte* end,
                                std::span<std::uint8_t> values) {
  for (std::size_t i = 0; i < values.size() && next <= end; ++i) values[i] = range_take(table, states[i % kRangeLanes], next);
  return next;
}

#else

constexpr Tag<std::uint32_t> kState{};
constexpr hn::RebindToSigned<Tag<std::uint32_t>> kPlace{};
constexpr hn::Rebind<std::uint16_t, Tag<std::uint32_t>> kWord{};
constexpr hn::Repartition<std::uint8_t, hn::Rebind<std::uint16_t, Tag<std::uint32_t>>> kWordBytes{};
constexpr hn::Rebind<std::uint8_t, Tag<std::uint32_t>> kValue{};
constexpr hn::RepartitionToWide<Tag<std::uint32_t>> kWide{};
constexpr std::size_t kStateWidth = kWidth<std::uint32_t>, kStateVectors = kRangeLanes / kStateWidth;
using States = Vector<std::uint32_t>;
using StateMask = hn::Mask<Tag<std::uint32_t>>;

HWY_INLINE States gather(const std::uint32_t* table, States index) { return hn::GatherIndex(kState, table, hn::BitCast(kPlace, index)); }
HWY_INLINE StateMask below(States states, std::int32_t limit) {
  return hn::RebindMask(kState, hn::Lt(hn::BitCast(kPlace, states), hn::Set(kPlace, limit)));
}
HWY_INLINE unsigned bits_of(StateMask mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(kState, mask, bytes);
  return bytes[0] | static_cast<unsigned>(bytes[1]) << 8;
}

HWY_INLINE auto low_words(States states) { return hn::DemoteTo(kWord, hn::BitCast(kPlace, hn::And(states, hn::Set(kState, 0xFFFF)))); }

// write_words() writes the lower halves of the lanes in the mask, in their order, up to `next`, and may write anything before them. words_at() are so many words from `next`
// on as lanes are in the mask, one in each of them; 0 elsewhere.
#if HWY_TARGET <= HWY_AVX3
HWY_INLINE void write_words(States states, StateMask mask, unsigned bits, std::uint16_t* next) {
  const auto count = static_cast<std::size_t>(std::popcount(bits));
  hn::BlendedStore(low_words(hn::Compress(states, mask)), hn::FirstN(kWord, count), kWord, next - count);
}
HWY_INLINE States words_at(const std::byte* next, StateMask mask, unsigned) {
  const auto words = hn::BitCast(kWord, hn::LoadU(kWordBytes, reinterpret_cast<const std::uint8_t*>(next)));
  return States{_mm512_maskz_expand_epi32(mask.raw, hn::PromoteTo(kState, words).raw)};
}
#else
// For each mask which lane takes which word, and which lane's word is at which place when they all are at the end.
struct LanePlaces {
  std::uint8_t taken[std::size_t{1} << kStateWidth][kStateWidth] = {}, at_end[std::size_t{1} << kStateWidth][kStateWidth] = {};
  constexpr LanePlaces() {
    for (std::size_t bits = 0; bits < std::size(taken); ++bits) {
      std::size_t rank = 0, place = kStateWidth - static_cast<std::size_t>(std::popcount(bits));
      for (std::size_t lane = 0; lane < kStateWidth; ++lane) {
        taken[bits][lane] = static_cast<std::uint8_t>(rank);
        if ((bits >> lane & 1) == 0) continue;
        ++rank;
        at_end[bits][place++] = static_cast<std::uint8_t>(lane);
      }
    }
  }
};
constexpr LanePlaces kLanePlaces;
HWY_INLINE States in_places(States lanes, const std::uint8_t* places) {
  return hn::TableLookupLanes(lanes, hn::IndicesFromVec(kState, hn::PromoteTo(kPlace, hn::LoadU(kValue, places))));
}
HWY_INLINE void write_words(States states, StateMask, unsigned bits, std::uint16_t* next) {
  hn::StoreU(low_words(in_places(states, kLanePlaces.at_end[bits])), kWord, next - kStateWidth);
}
HWY_INLINE States words_at(const std::byte* next, StateMask mask, unsigned bits) {
  const auto words = hn::BitCast(kWord, hn::LoadU(kWordBytes, reinterpret_cast<const std::uint8_t*>(next)));
  return hn::IfThenElseZero(mask, in_places(hn::PromoteTo(kState, words), kLanePlaces.taken[bits]));
}
#endif

// The upper halves of products.
HWY_INLINE States high_products(States a, States b) {
  const auto odd = [](States v) HWY_ATTR { return hn::BitCast(kState, hn::ShiftRight<32>(hn::BitCast(kWide, v))); };
  return hn::OddEven(hn::BitCast(kState, hn::MulEven(odd(a), odd(b))), hn::BitCast(kState, hn::ShiftRight<32>(hn::MulEven(a, b))));
}

// All states, in registers while a run lasts.
class Register {
 public:
  HWY_INLINE explicit Register(RangeStates& states) : memory_(states) {
    for (std::size_t v = 0; v < kStateVectors; ++v) vectors_[v] = hn::LoadU(kState, memory_.data() + v * kStateWidth);
  }
  HWY_INLINE void store() const {
    for (std::size_t v = 0; v < kStateVectors; ++v) hn::StoreU(vectors_[v], kState, memory_.data() + v * kStateWidth);
  }
  HWY_INLINE States& operator[](std::size_t v) { return vectors_[v]; }

 private:
  RangeStates& memory_;
  States vectors_[kStateVectors];
};

// Whom a step is for: all lanes, or the first ones of the last step of a run.
struct All {
  HWY_INLINE static bool any(std::size_t) { return true; }
  HWY_INLINE static StateMask among(std::size_t, StateMask mask) { return mask; }
  HWY_INLINE static States choose(std::size_t, States changed, States) { return changed; }
};
struct First {
  std::size_t count;

  HWY_INLINE bool any(std::size_t v) const { return v * kStateWidth < count; }
  HWY_INLINE StateMask mask(std::size_t v) const { return hn::FirstN(kState, std::min(count - v * kStateWidth, kStateWidth)); }
  HWY_INLINE StateMask among(std::size_t v, StateMask of) const { return hn::And(mask(v), of); }
  HWY_INLINE States choose(std::size_t v, States changed, States old) const { return hn::IfThenElse(mask(v), changed, old); }
};

template <class Whom>
HWY_INLINE std::uint16_t* put(const RangeTable& table, Register& states, std::uint16_t* next, const std::uint8_t* values, Whom whom) {
  for (std::size_t v = kStateVectors; v-- > 0;) {
    if (!whom.any(v)) continue;
    const auto value = hn::PromoteTo(kState, hn::LoadU(kValue, values + v * kStateWidth));
    const auto coding = gather(table.codings.data(), value), reciprocal = gather(table.reciprocals.data(), value);
    const auto complement = hn::And(hn::ShiftRight<13>(coding), hn::Set(kState, 0x1FFF));
    // A state's limit may be 2^31, which compares as signed only when it is one less.
    const auto last = hn::Sub(hn::ShiftLeft<31 - kFrequencyBits>(hn::Sub(hn::Set(kState, kFrequencySum), complement)), hn::Set(kState, 1));
    const auto full = whom.among(v, hn::RebindMask(kState, hn::Gt(hn::BitCast(kPlace, states[v]), hn::BitCast(kPlace, last))));
    const unsigned bits = bits_of(full);
    write_words(states[v], full, bits, next);
    next -= std::popcount(bits);
    const auto x = hn::IfThenElse(full, hn::ShiftRight<16>(states[v]), states[v]);
    const auto quotient = hn::Shr(high_products(x, reciprocal), hn::ShiftRight<26>(coding));
    const auto changed = hn::Add(hn::Add(x, hn::And(coding, hn::Set(kState, 0x1FFF))), hn::Mul(quotient, complement));
    states[v] = whom.choose(v, changed, states[v]);
  }
  return next;
}

template <class Whom>
HWY_INLINE const std::byte* take(const RangeTable& table, Register& states, const std::byte* next, std::uint8_t* values, Whom whom) {
  for (std::size_t v = 0; v < kStateVectors; ++v) {
    if (!whom.any(v)) continue;
    const auto place = gather(table.places.data(), hn::And(states[v], hn::Set(kState, kFrequencySum - 1)));
    const auto frequency = hn::Add(hn::ShiftRight<20>(place), hn::Set(kState, 1));
    const auto x = hn::Add(hn::Mul(frequency, hn::ShiftRight<kFrequencyBits>(states[v])), hn::And(hn::ShiftRight<8>(place), hn::Set(kState, 0xFFF)));
    const auto low = whom.among(v, below(x, kLeastState));
    const unsigned bits = bits_of(low);
    const auto changed = hn::Or(hn::IfThenElse(low, hn::ShiftLeft<16>(x), x), words_at(next, low, bits));
    states[v] = whom.choose(v, changed, states[v]);
    next += static_cast<std::size_t>(std::popcount(bits)) * sizeof(std::uint16_t);
    hn::StoreU(hn::TruncateTo(kValue, place), kValue, values + v * kStateWidth);
  }
  return next;
}

std::uint16_t* range_put_run(const RangeTable& table, RangeStates& states, std::uint16_t* next, std::span<const std::uint8_t> values) {
  Register lanes(states);
  std::size_t i = values.size() - values.size() % kRangeLanes;
  if (const std::size_t left = values.size() - i; left > 0) next = put(table, lanes, next, values.data() + i, First{left});
  for (; i > 0; i -= kRangeLanes) next = put(table, lanes, next, values.data() + i - kRangeLanes, All());
  lanes.store();
  return next;
}

const std::byte* range_take_run(const RangeTable& table, RangeStates& states, const std::byte* next, const std::byte* end,
                                std::span<std::uint8_t> values) {
  Register lanes(states);
  std::size_t i = 0;
  for (; i + kRangeLanes <= values.size() && next <= end; i += kRangeLanes) next = take(table, lanes, next, values.data() + i, All());
  if (const std::size_t left = values.size() - i; left > 0 && next <= end) next = take(table, lanes, next, values.data() + i, First{left});
  lanes.store();
  return next;
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {
HWY_EXPORT(range_put_run);
HWY_EXPORT(range_take_run);

RangeTable range_table_of(std::span<const std::uint32_t, 256> frequencies) {
  RangeTable table;
  std::uint32_t begin = 0;
  for (std::size_t value = 0; value < frequencies.size(); ++value) {
    const std::uint32_t f = frequencies[value];
    for (std::uint32_t place = 0; place < f; ++place)
      table.places[begin + place] = static_cast<std::uint32_t>(value) | place << 8 | (f - 1) << 20;
    const unsigned shift = f < 2 ? 0 : static_cast<unsigned>(std::bit_width(f - 1)) - 1;
    const std::uint32_t bias = f == 1 ? begin + kFrequencySum - 1 : begin;
    table.reciprocals[value] = f < 2 ? ~0U : static_cast<std::uint32_t>(((std::uint64_t{1} << (32 + shift)) + f - 1) / f);
    table.codings[value] = bias | (kFrequencySum - f) << 13 | shift << 26;
    begin += f;
  }
  return table;
}

std::uint16_t* range_put_run(const RangeTable& table, RangeStates& states, std::uint16_t* next, std::span<const std::uint8_t> values) {
  return HWY_DYNAMIC_DISPATCH(range_put_run)(table, states, next, values);
}
const std::byte* range_take_run(const RangeTable& table, RangeStates& states, const std::byte* next, const std::byte* end,
                                std::span<std::uint8_t> values) {
  return HWY_DYNAMIC_DISPATCH(range_take_run)(table, states, next, end, values);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
