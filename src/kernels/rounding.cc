#include "kernels/rounding.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rounding.cc"
#include "hwy/foreach_target.h"  // must come before the next two
#include "hwy/highway.h"
#include "kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

using Word = std::uint32_t;
constexpr Tag<Word> kWord{};

// The upper and lower halves of 64-bit products with a constant.
struct Product {
  Vector<Word> high, low;
};

HWY_INLINE Product multiply_wide(Vector<Word> x, Word factor) {
#if HWY_TARGET == HWY_SCALAR
  const std::uint64_t product = std::uint64_t{hn::GetLane(x)} * factor;
  return {hn::Set(kWord, static_cast<Word>(product >> 32)), hn::Set(kWord, static_cast<Word>(product))};
#else
  const hn::RepartitionToWide<Tag<Word>> wide;
  const Vector<Word> f = hn::Set(kWord, factor);
  const auto even = hn::MulEven(x, f);
  const auto odd = hn::MulEven(hn::BitCast(kWord, hn::ShiftRight<32>(hn::BitCast(wide, x))), f);
  const auto high_of_even = hn::BitCast(kWord, hn::ShiftRight<32>(even));
  const auto low_of_odd = hn::BitCast(kWord, hn::ShiftLeft<32>(odd));
  return {hn::OddEven(hn::BitCast(kWord, odd), high_of_even), hn::OddEven(low_of_odd, hn::BitCast(kWord, even))};
#endif
}

// The blocks of the counters that begin with first + 16 a + (the lanes of the i-th vector): word b goes to group[16 b + lane].
HWY_INLINE void make_blocks(std::array<Word, 4> counter, std::array<Word, 2> key, std::size_t i, Word* group) {
  const auto first = static_cast<Word>(counter[0] + i * kWidth<Word>);
  Vector<Word> c0 = hn::Iota(kWord, first);
  Vector<Word> c1 = hn::Set(kWord, counter[1]), c2 = hn::Set(kWord, counter[2]), c3 = hn::Set(kWord, counter[3]);
  for (int round = 0; round < 10; ++round) {
    const Product even = multiply_wide(c0, 0xD2511F53U);
    const Product odd = multiply_wide(c2, 0xCD9E8D57U);
    c0 = hn::Xor(hn::Xor(odd.high, c1), hn::Set(kWord, key[0]));
    c2 = hn::Xor(hn::Xor(even.high, c3), hn::Set(kWord, key[1]));
    c1 = odd.low;
    c3 = even.low;
    key = {key[0] + 0x9E3779B9U, key[1] + 0xBB67AE85U};
  }
  store(c0, group, i);
  store(c1, group + kLanes, i);
  store(c2, group + 2 * kLanes, i);
  store(c3, group + 3 * kLanes, i);
}

void random_words(std::array<Word, 4> counter, std::array<Word, 2> key, std::span<Word> words) {
  for (; words.size() >= kWordGroup; words = words.subspan(kWordGroup), counter[0] += kLanes)
    for (std::size_t i = 0; i < kVectors<Word>; ++i) make_blocks(counter, key, i, words.data());
  if (words.empty()) return;
  Word last[kWordGroup];
  for (std::size_t i = 0; i < kVectors<Word>; ++i) make_blocks(counter, key, i, last);
  std::copy_n(last, words.size(), words.data());
}

struct Rounding {
  float inverse_step;
  float limit;
  HWY_INLINE void operator()(const float* values, const Word* words, std::int32_t* levels) const {
    const Tag<float> tag;
    const Tag<std::int32_t> whole;
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      const Vector<float> x = hn::Mul(load(values, i), hn::Set(tag, inverse_step));
      const Vector<float> below = hn::Floor(x);
      const auto drawn = hn::ConvertTo(tag, hn::BitCast(whole, hn::ShiftRight<8>(load(words, i))));
      const auto up = hn::Lt(hn::Mul(drawn, hn::Set(tag, 1.0F / (1 << 24))), hn::Sub(x, below));
      const Vector<float> rounded = hn::Add(below, hn::IfThenElseZero(up, hn::Set(tag, 1.0F)));
      const Vector<float> clamped = hn::Max(hn::Min(rounded, hn::Set(tag, limit)), hn::Set(tag, -limit));
      store(hn::ConvertTo(whole, clamped), levels, i);
    }
  }
};

void round_randomly(std::span<const float> values, float inverse_step, std::int32_t limit, std::span<const Word> words,
                    std::span<std::int32_t> levels) {
  for_each_group(values.size(), Rounding{inverse_step, static_cast<float>(limit)}, Column(values), Column(words), Column(levels));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(random_words);
HWY_EXPORT(round_randomly);

void random_words(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key, std::span<std::uint32_t> words) {
  HWY_DYNAMIC_DISPATCH(random_words)(counter, key, words);
}
void round_randomly(std::span<const float> values, float inverse_step, std::int32_t limit,
                    std::span<const std::uint32_t> words, std::span<std::int32_t> levels) {
  HWY_DYNAMIC_DISPATCH(round_randomly)(values, inverse_step, limit, words, levels);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
