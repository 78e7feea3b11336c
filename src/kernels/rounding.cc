#include "kernels/rounding.h"

#include <algorithm>

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

// The blocks of 16 counters from `counter` on: word b goes to group[16 b + lane]. Up to two vectors of them take turns, as each round of one waits
// for itself.
HWY_INLINE void make_blocks(std::array<Word, 4> counter, std::array<Word, 2> key, Word* group) {
  constexpr std::size_t kTogether = std::min<std::size_t>(2, kVectors<Word>);
  for (std::size_t first = 0; first < kVectors<Word>; first += kTogether) {
    Vector<Word> c0[kTogether], c1[kTogether], c2[kTogether], c3[kTogether];
    for (std::size_t i = 0; i < kTogether; ++i) {
      c0[i] = hn::Iota(kWord, static_cast<Word>(counter[0] + (first + i) * kWidth<Word>));
      c1[i] = hn::Set(kWord, counter[1]);
      c2[i] = hn::Set(kWord, counter[2]);
      c3[i] = hn::Set(kWord, counter[3]);
    }
    std::array<Word, 2> of_round = key;
    for (int round = 0; round < 10; ++round) {
      for (std::size_t i = 0; i < kTogether; ++i) {
        const Product even = multiply_wide(c0[i], 0xD2511F53U);
        const Product odd = multiply_wide(c2[i], 0xCD9E8D57U);
        c0[i] = hn::Xor(odd.high, hn::Xor(c1[i], hn::Set(kWord, of_round[0])));
        c2[i] = hn::Xor(even.high, hn::Xor(c3[i], hn::Set(kWord, of_round[1])));
        c1[i] = odd.low;
        c3[i] = even.low;
      }
      of_round = {of_round[0] + 0x9E3779B9U, of_round[1] + 0xBB67AE85U};
    }
    for (std::size_t i = 0; i < kTogether; ++i) {
      store(c0[i], group, first + i);
      store(c1[i], group + kLanes, first + i);
      store(c2[i], group + 2 * kLanes, first + i);
      store(c3[i], group + 3 * kLanes, first + i);
    }
  }
}

void random_words(std::array<Word, 4> counter, std::array<Word, 2> key, std::span<Word> words) {
  for (; words.size() >= kWordGroup; words = words.subspan(kWordGroup), counter[0] += kLanes) make_blocks(counter, key, words.data());
  if (words.empty()) return;
  Word last[kWordGroup];
  make_blocks(counter, key, last);
  std::copy_n(last, words.size(), words.data());
}

constexpr std::size_t kRoundedGroup = 2 * kWordGroup;

HWY_INLINE void make_rounding_words(std::array<Word, 4> counter, std::array<Word, 2> key, Word* group) {
  Word drawn[kWordGroup];
  make_blocks(counter, key, drawn);
  for (std::size_t first = 0; first < kWordGroup; first += kLanes)
    for (std::size_t i = 0; i < kVectors<Word>; ++i) {
      const Vector<Word> word = load(drawn + first, i);
      store(word, group + 2 * first, i);
      store(hn::Or(hn::ShiftLeft<16>(word), hn::ShiftRight<16>(word)), group + 2 * first + kLanes, i);
    }
}

void rounding_words(std::array<Word, 4> counter, std::array<Word, 2> key, std::size_t first, std::span<Word> words) {
  counter[0] += static_cast<Word>(first / kRoundedGroup * kLanes);
  std::size_t begin = first % kRoundedGroup;  // in a group of which only a part is wanted
  for (; !words.empty(); counter[0] += kLanes, begin = 0) {
    if (begin == 0 && words.size() >= kRoundedGroup) {
      make_rounding_words(counter, key, words.data());
      words = words.subspan(kRoundedGroup);
      continue;
    }
    Word group[kRoundedGroup];
    make_rounding_words(counter, key, group);
    const std::size_t count = std::min(words.size(), kRoundedGroup - begin);
    std::copy_n(group + begin, count, words.data());
    words = words.subspan(count);
  }
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
HWY_EXPORT(rounding_words);
HWY_EXPORT(round_randomly);

void random_words(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key, std::span<std::uint32_t> words) {
  HWY_DYNAMIC_DISPATCH(random_words)(counter, key, words);
}
void rounding_words(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key, std::size_t first, std::span<std::uint32_t> words) {
  HWY_DYNAMIC_DISPATCH(rounding_words)(counter, key, first, words);
}
void round_randomly(std::span<const float> values, float inverse_step, std::int32_t limit,
                    std::span<const std::uint32_t> words, std::span<std::int32_t> levels) {
  HWY_DYNAMIC_DISPATCH(round_randomly)(values, inverse_step, limit, words, levels);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
