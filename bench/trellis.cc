#include "bench/trellis.h"

#include <algorithm>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::bench {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::CappedTag<float, 16>;
using WholeTag = hn::RebindToSigned<Tag>;
using Floats = hn::Vec<Tag>;
using Wholes = hn::Vec<WholeTag>;
constexpr Tag kFloat;
constexpr WholeTag kWhole;
constexpr std::size_t kLanes = hn::MaxLanes(kFloat);
constexpr std::size_t kQuad = 4;
constexpr hn::FixedTag<float, kQuad> kFour;
constexpr std::size_t kZero = kStates;  // of a decision's bits: a state's even level is 0, behind which way led into a state

// The two levels next to a magnitude, in steps, by whether they are even, and what is missing to them.
struct Near {
  Floats even, odd, even_error, odd_error;

  // kLess: what level k is less than 2 k steps.
  template <int kLess>
  static HWY_INLINE Near of(Floats magnitude) {
    const Floats half = hn::Set(kFloat, 0.5F), one = hn::Set(kFloat, 1.0F), two = hn::Set(kFloat, 2.0F), less = hn::Set(kFloat, kLess);
    const Floats lower = hn::Floor(hn::Mul(hn::Add(magnitude, less), half));
    const Floats parity = hn::Sub(lower, hn::Mul(two, hn::Floor(hn::Mul(lower, half))));
    Near near;
    near.even = hn::Add(lower, parity);
    near.odd = hn::Sub(hn::Add(lower, one), parity);
    const Floats target = hn::Add(magnitude, less);
    near.even_error = hn::NegMulAdd(two, near.even, target);
    near.odd_error = hn::NegMulAdd(two, near.odd, target);
    return near;
  }
};

// A block's lane.
struct Group {
  alignas(64) float magnitudes[kLanes / kQuad][kTrellisBlock * kQuad];  // of four blocks each, entry by entry
  alignas(64) std::int32_t decisions[kTrellisBlock * kLanes];
  alignas(64) float zero[kStates][kLanes], first[kStates][kLanes], each[kStates][kLanes];

  // Of all blocks the i-th one.
  HWY_INLINE Floats load(std::size_t i) const {
    return joined(kFloat, [&](std::size_t quad) HWY_ATTR { return hn::Load(kFour, magnitudes[quad] + i * kQuad); }, 0);
  }

 private:
  template <class D, class Load>
  static HWY_INLINE hn::Vec<D> joined(D d, const Load& load_quad, std::size_t quad) {
    if constexpr (hn::MaxLanes(D()) == kQuad) {
      return load_quad(quad);
    } else {
      const hn::Half<D> half;
      const auto lower = joined(half, load_quad, quad);
      return hn::Combine(d, joined(half, load_quad, quad + hn::MaxLanes(half) / kQuad), lower);
    }
  }
};

HWY_INLINE Wholes bit_where(hn::Mask<Tag> mask, std::size_t bit) {
  return hn::IfThenElseZero(hn::RebindMask(kWhole, mask), hn::Set(kWhole, 1 << bit));
}

// Levels of the group's blocks lie side by side.
HWY_NOINLINE void search(Group& group, std::int16_t* levels) {
  const Floats never = hn::Set(kFloat, 1e30F), nothing = hn::Zero(kFloat);
  Floats total[kStates] = {nothing, never, never, never};
  for (std::size_t i = 0; i < kTrellisBlock; ++i) {
    const Floats magnitude = group.load(i), square = hn::Mul(magnitude, magnitude);
    const Near near[2] = {Near::of<0>(magnitude), Near::of<1>(magnitude)};
    Floats even[kStates], odd[kStates];
    Wholes decision = hn::Zero(kWhole);
    for (std::size_t s = 0; s < kStates; ++s) {
      const Near& n = near[s / 2];
      const Floats zero = hn::Load(kFloat, group.zero[s]), first = hn::Load(kFloat, group.first[s]), each = hn::Load(kFloat, group.each[s]);
      const Floats at_zero = hn::Add(square, zero);
      const Floats at_even = hn::MulAdd(n.even_error, n.even_error, hn::MulAdd(each, n.even, first));
      const auto is_zero = hn::Or(hn::Eq(n.even, nothing), hn::Le(at_zero, at_even));
      even[s] = hn::Add(total[s], hn::IfThenElse(is_zero, at_zero, at_even));
      odd[s] = hn::Add(total[s], hn::MulAdd(n.odd_error, n.odd_error, hn::MulAdd(each, n.odd, first)));
      decision = hn::Or(decision, bit_where(is_zero, kZero + s));
    }
    // Into a state from the first or the second of its two predecessors.
    const auto into = [&](std::size_t state, Floats from_first, Floats from_second) HWY_ATTR {
      const auto second = hn::Lt(from_second, from_first);
      total[state] = hn::Min(from_first, from_second);
      decision = hn::Or(decision, bit_where(second, state));
    };
    into(0, even[0], odd[1]);
    into(2, odd[0], even[1]);
    into(1, even[2], odd[3]);
    into(3, odd[2], even[3]);
    hn::Store(decision, kWhole, group.decisions + i * kLanes);
  }

  Wholes state = hn::Zero(kWhole);
  Floats least = total[0];
  for (int s = 1; s < static_cast<int>(kStates); ++s) {
    state = hn::IfThenElse(hn::RebindMask(kWhole, hn::Lt(total[s], least)), hn::Set(kWhole, s), state);
    least = hn::Min(least, total[s]);
  }
  const Wholes one = hn::Set(kWhole, 1);
  const hn::Rebind<std::int16_t, WholeTag> short_tag;
  for (std::size_t i = kTrellisBlock; i-- > 0;) {
    const Wholes decision = hn::Load(kWhole, group.decisions + i * kLanes);
    const Wholes second = hn::And(hn::Shr(decision, state), one);
    const Wholes is_odd = hn::Xor(second, hn::ShiftRight<1>(state));
    const Wholes from = hn::Add(hn::ShiftLeft<1>(hn::And(state, one)), second);
    const Floats magnitude = group.load(i);
    const Wholes lower = hn::ConvertTo(kWhole, hn::Mul(hn::Add(magnitude, hn::ConvertTo(kFloat, hn::ShiftRight<1>(from))), hn::Set(kFloat, 0.5F)));
    const Wholes level = hn::Add(lower, hn::And(hn::Xor(lower, is_odd), one));
    const Wholes is_zero = hn::And(hn::Shr(decision, hn::Add(from, hn::Set(kWhole, static_cast<int>(kZero)))), hn::AndNot(is_odd, one));
    hn::StoreU(hn::DemoteTo(short_tag, hn::AndNot(hn::Neg(is_zero), level)), short_tag, levels + i * kTrellisGroup);
    state = from;
  }
}

}  // namespace

void choose_levels(std::span<const float> values, float step, std::span<const std::uint8_t> classes, std::span<const ClassPrices> prices,
                   std::span<std::int16_t> levels) {
  Group group;
  const float inverse = 1 / step;
  for (std::size_t block = 0; block < classes.size(); block += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const ClassPrices& own_prices = prices[classes[block + lane]];
      for (std::size_t s = 0; s < kStates; ++s) {
        group.zero[s][lane] = own_prices[s].zero;
        group.first[s][lane] = own_prices[s].first;
        group.each[s][lane] = own_prices[s].each;
      }
    }
    for (std::size_t quad = 0; quad < kLanes / kQuad; ++quad)
      for (std::size_t i = 0; i < kTrellisBlock; i += kQuad) {
        const auto of = [&](std::size_t lane) HWY_ATTR {
          return hn::Mul(hn::Abs(hn::LoadU(kFour, values.data() + (block + quad * kQuad + lane) * kTrellisBlock + i)), hn::Set(kFour, inverse));
        };
        hn::StoreInterleaved4(of(0), of(1), of(2), of(3), kFour, group.magnitudes[quad] + i * kQuad);
      }
    search(group, levels.data() + block / kTrellisGroup * kTrellisGroup * kTrellisBlock + block % kTrellisGroup);
  }
}

}  // namespace thinwire::bench
HWY_AFTER_NAMESPACE();
