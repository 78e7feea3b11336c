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

// Words travel as the lower halves of 64-bit lanes, where products have room; what is in the upper halves does not count. A vector of words takes one such
// vector without SIMD, else two: of even and of odd lanes.
using Wide = std::uint64_t;
constexpr Tag<Wide> kWide{};
constexpr std::size_t kParts = kWidth<Word> / kWidth<Wide>;

HWY_INLINE Vector<Wide> multiply(Vector<Wide> x, Word factor) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(kWide, (hn::GetLane(x) & 0xFFFFFFFFU) * factor);
#else
  return hn::MulEven(hn::BitCast(kWord, x), hn::Set(kWord, factor));
#endif
}

HWY_INLINE Vector<Word> join(const Vector<Wide> (&parts)[kParts]) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(kWord, static_cast<Word>(hn::GetLane(parts[0])));
#else
  return hn::OddEven(hn::BitCast(kWord, hn::ShiftLeft<32>(parts[1])), hn::BitCast(kWord, parts[0]));
#endif
}

// The blocks of 16 counters from `counter` on: word b goes to group[16 b + lane].
template <int kRounds>
HWY_INLINE void make_blocks(std::array<Word, 4> counter, std::array<Word, 2> key, Word* group) {
  for (std::size_t v = 0; v < kVectors<Word>; ++v) {
    Vector<Wide> words[4][kParts];
    for (std::size_t part = 0; part < kParts; ++part) {
      const auto lanes = hn::Mul(hn::Iota(kWide, Wide{0}), hn::Set(kWide, Wide{kParts}));
      words[0][part] = hn::Add(lanes, hn::Set(kWide, Wide{counter[0]} + v * kWidth<Word> + part));
      for (std::size_t b = 1; b < 4; ++b) words[b][part] = hn::Set(kWide, Wide{counter[b]});
    }
    std::array<Word, 2> of_round = key;
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t part = 0; part < kParts; ++part) {  // they take turns, as each round waits for the one before
        const Vector<Wide> even = multiply(words[0][part], 0xD2511F53U), odd = multiply(words[2][part], 0xCD9E8D57U);
        words[0][part] = hn::Xor3(hn::ShiftRight<32>(odd), words[1][part], hn::Set(kWide, Wide{of_round[0]}));
        words[2][part] = hn::Xor3(hn::ShiftRight<32>(even), words[3][part], hn::Set(kWide, Wide{of_round[1]}));
        words[1][part] = odd;
        words[3][part] = even;
      }
      of_round = {of_round[0] + 0x9E3779B9U, of_round[1] + 0xBB67AE85U};
    }
    for (std::size_t b = 0; b < 4; ++b) store(join(words[b]), group + b * kLanes, v);
  }
}

void random_words(std::array<Word, 4> counter, std::array<Word, 2> key, std::span<Word> words) {
  for (; words.size() >= kWordGroup; words = words.subspan(kWordGroup), counter[0] += kLanes)
    make_blocks<kPhiloxRounds>(counter, key, words.data());
  if (words.empty()) return;
  Word last[kWordGroup];
  make_blocks<kPhiloxRounds>(counter, key, last);
  std::copy_n(last, words.size(), words.data());
}

constexpr std::size_t kRoundedGroup = 2 * kWordGroup;

HWY_INLINE void make_rounding_words(std::array<Word, 4> counter, std::array<Word, 2> key, Word* group) {
  Word drawn[kWordGroup];
  make_blocks<kRoundingPhiloxRounds>(counter, key, drawn);
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
