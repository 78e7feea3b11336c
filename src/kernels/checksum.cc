#include "kernels/checksum.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/checksum.cc"
#include "hwy/foreach_target.h"  // must come before the next two
#include "hwy/highway.h"
#include "kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

using Word = std::uint32_t;
constexpr Tag<Word> kWord{};
constexpr std::size_t kGroupBytes = kLanes * sizeof(Word);

// The i-th vector of a group, which may begin at any byte; the scalar target's own loads want words that are aligned.
HWY_INLINE Vector<Word> words_of(const std::byte* group, std::size_t i) {
  const std::byte* const bytes = group + i * kWidth<Word> * sizeof(Word);
#if HWY_TARGET == HWY_SCALAR
  Word word;
  std::memcpy(&word, bytes, sizeof word);
  return hn::Set(kWord, word);
#else
  return hn::BitCast(kWord, hn::LoadU(hn::Repartition<std::uint8_t, Tag<Word>>(), reinterpret_cast<const std::uint8_t*>(bytes)));
#endif
}

// mix_in() of a word in each lane.
class Chains {
 public:
  HWY_INLINE Chains() {
    for (std::size_t i = 0; i < kVectors<Word>; ++i) sums_[i] = hn::Set(kWord, kChecksumStart);
  }

  HWY_INLINE void mix_in(const std::byte* group) {
    for (std::size_t i = 0; i < kVectors<Word>; ++i) {
      const auto x = hn::Mul(hn::Xor(sums_[i], words_of(group, i)), hn::Set(kWord, 0x9E3779B1u));
      sums_[i] = hn::Xor(x, hn::ShiftRight<15>(x));
    }
  }

  HWY_INLINE Word end(std::size_t bytes) const {
    Word lanes[kLanes];
    for (std::size_t i = 0; i < kVectors<Word>; ++i) store(sums_[i], lanes, i);
    Word sum = kernels::mix_in(kChecksumStart, static_cast<Word>(bytes));
    for (const Word lane : lanes) sum = kernels::mix_in(sum, lane);
    return sum;
  }

 private:
  Lanes<Word> sums_;
};

Word checksum(std::span<const std::byte> bytes) {
  Chains chains;
  const std::size_t full = bytes.size() / kGroupBytes * kGroupBytes;
  for (std::size_t begin = 0; begin < full; begin += kGroupBytes) {
    prefetch_beyond(bytes.data() + begin);
    chains.mix_in(bytes.data() + begin);
  }
  if (full < bytes.size()) {
    std::byte padded[kGroupBytes] = {};
    std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(full), bytes.end(), padded);
    chains.mix_in(padded);
  }
  return chains.end(bytes.size());
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(checksum);

std::uint32_t checksum(std::span<const std::byte> bytes) { return HWY_DYNAMIC_DISPATCH(checksum)(bytes); }

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
