#include <array>
#include <limits>

#include "kernels/codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/assigning_randomly.cc"
#include "hwy/foreach_target.h"  // must come before the next four
#include "hwy/highway.h"
#include "kernels/codes-inl.h"
#include "kernels/groups-inl.h"
#include "kernels/spread-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

using Word = std::uint32_t;

// Of each level: itself (infinity where a code has none), where it begins to be looked for, and what the way to the next one is divided by.
template <std::size_t kBits>
struct Steps {
  std::array<float, std::size_t{1} << kBits> levels, starts, inverse_gaps;

  explicit Steps(std::span<const float> given) {
    starts.fill(std::numeric_limits<float>::infinity());
    levels.fill(given.back());
    inverse_gaps.fill(0);
    for (std::size_t i = 0; i < given.size(); ++i) levels[i] = starts[i] = given[i];
    for (std::size_t i = 0; i + 1 < given.size(); ++i) inverse_gaps[i] = 1 / (given[i + 1] - given[i]);
  }
};

template <std::size_t kBits>
class AssigningRandomly {
 public:
  HWY_INLINE explicit AssigningRandomly(const Steps<kBits>& steps)
      : levels_(steps.levels), starts_(steps.starts), inverse_gaps_(steps.inverse_gaps) {}

  HWY_INLINE Vector<Index> operator()(Vector<float> x, Vector<Word> word) const {
    Vector<Index> below = hn::Zero(kIndex);  // the last level that x reaches, or the first one
    for (std::size_t k = kBits; k-- > 0;) {
      const Vector<Index> further = hn::Add(below, hn::Set(kIndex, Index{1} << k));
      below = hn::IfThenElse(hn::RebindMask(kIndex, hn::Ge(x, starts_[further])), further, below);
    }
    const Vector<float> share = hn::Mul(hn::Sub(x, levels_[below]), inverse_gaps_[below]);
    const auto uniform = hn::Mul(hn::ConvertTo(kFloat, hn::BitCast(kIndex, hn::ShiftRight<8>(word))), hn::Set(kFloat, 1.0F / (1 << 24)));
    return hn::Sub(below, hn::VecFromMask(kIndex, hn::RebindMask(kIndex, hn::Lt(uniform, share))));  // true is -1
  }

 private:

  Table<kBits> levels_, starts_, inverse_gaps_;
};

// In fixed point: what is drawn is added to the share of the way to the next level, and carries.
template <std::size_t kBits>
class AssigningEvenlyRandomly {
 public:
  HWY_INLINE explicit AssigningEvenlyRandomly(const EvenLevels& levels)
      : inverse_step_(hn::Set(kFloat, levels.inverse_step)),
        outermost_(hn::Set(kFloat, 0.5F * static_cast<float>(levels.largest))),
        most_drawn_(hn::Set(kIndex, (levels.largest << (kShareBits - 1)) + (1 << kShareBits) - 1)) {}

  HWY_INLINE Vector<Index> operator()(Vector<float> value, Vector<Word> word) const {
    const Vector<float> x = hn::Max(hn::Min(hn::Mul(value, inverse_step_), outermost_), hn::Neg(outermost_));
    const Vector<Index> fixed = hn::NearestInt(hn::Mul(x, hn::Set(kFloat, static_cast<float>(1 << kShareBits))));
    const Vector<Index> drawn = hn::BitCast(kIndex, hn::ShiftRight<32 - kShareBits>(word));
    return hn::ShiftRight<kShareBits>(hn::Sub(hn::Add(fixed, most_drawn_), drawn));
  }

 private:
  static constexpr int kShareBits = 30 - static_cast<int>(kBits);

  Vector<float> inverse_step_, outermost_;
  Vector<Index> most_drawn_;  // and where fixed point begins
};

void assign_evenly(std::span<const float> values, const EvenLevels& levels, int bits, std::span<const Word> words, std::span<std::byte> packed) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    pack_codes<constant()>(AssigningEvenlyRandomly<constant()>(levels), packed, values.size(), values, words);
  });
}

void assign_randomly(std::span<const float> values, std::span<const float> levels, int bits, std::span<const Word> words,
                     std::span<std::byte> packed) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    const Steps<constant()> steps(levels);
    pack_codes<constant()>(AssigningRandomly<constant()>(steps), packed, values.size(), values, words);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(assign_randomly);
HWY_EXPORT(assign_evenly);

void assign_randomly(std::span<const float> values, std::span<const float> levels, int bits, std::span<const std::uint32_t> words,
                     std::span<std::byte> packed) {
  HWY_DYNAMIC_DISPATCH(assign_randomly)(values, levels, bits, words, packed);
}
void assign_randomly(std::span<const float> values, const EvenLevels& levels, int bits, std::span<const std::uint32_t> words,
                     std::span<std::byte> packed) {
  HWY_DYNAMIC_DISPATCH(assign_evenly)(values, levels, bits, words, packed);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
