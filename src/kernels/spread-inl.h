// Codes as vectors of whole numbers: many groups' packed at once, and taken apart. Included once a target.
#if defined(THINWIRE_KERNELS_SPREAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_SPREAD_INL_H_
#undef THINWIRE_KERNELS_SPREAD_INL_H_
#else
#define THINWIRE_KERNELS_SPREAD_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "hwy/highway.h"
#include "kernels/groups-inl.h"
#include "kernels/planes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

using Index = std::int32_t;
constexpr Tag<Index> kIndex{};

// Codes of several groups, spread: each lane of a vector holds one of each of `kVectorsHeld` vectors of elements, which are those of `kGroups` groups. A byte
// holds codes of groups that follow each other. For numbers of bits of which a byte holds whole ones.
template <std::size_t kBits>
struct Spread {
  static constexpr bool kHas = HWY_TARGET != HWY_SCALAR && std::has_single_bit(kBits);
  static constexpr std::size_t kInByte = 8 / kBits, kVectorsHeld = 4 * kInByte, kGroups = kVectorsHeld / std::min<std::size_t>(kVectors<Index>, 4);

  // Where in a lane the code of a vector begins.
  static constexpr int shift_of(std::size_t vector) {
    const std::size_t group = vector / kVectors<Index>, byte = group / kInByte * kVectors<Index> + vector % kVectors<Index>;
    return static_cast<int>(byte * 8 + group % kInByte * kBits);
  }

#if HWY_TARGET != HWY_SCALAR
  static HWY_INLINE void store(Vector<Index> codes, std::byte* planes) {
    const auto bytes = hn::TableLookupBytes(hn::BitCast(kBytes, codes), dup(kColumns));
    const auto in_order = hn::TableLookupLanes(hn::BitCast(kIndex, bytes), hn::SetTableIndices(kIndex, kFours.data()));
    hn::StoreU(planes_of(hn::BitCast(kBytes, in_order)), kBytes, reinterpret_cast<std::uint8_t*>(planes));
  }
  static HWY_INLINE Vector<Index> load(const std::byte* planes) {
    const auto codes = codes_of(hn::LoadU(kBytes, reinterpret_cast<const std::uint8_t*>(planes)));
    const auto in_blocks = hn::TableLookupLanes(hn::BitCast(kIndex, codes), hn::SetTableIndices(kIndex, kBlocks.data()));
    return hn::BitCast(kIndex, hn::TableLookupBytes(hn::BitCast(kBytes, in_blocks), dup(kColumns)));  // which is its own inverse
  }

 private:
  static constexpr hn::Repartition<std::uint8_t, Tag<Index>> kBytes{};
  static constexpr std::size_t kBlockCount = kWidth<Index> / 4;
  alignas(kLanes) static constexpr std::array<std::uint8_t, kLanes> kColumns = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  static constexpr std::array<Index, kWidth<Index>> transposing(std::size_t rows) {
    std::array<Index, kWidth<Index>> from{};
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<Index>(i % rows * (from.size() / rows) + i / rows);
    return from;
  }
  static constexpr std::array<Index, kWidth<Index>> kFours = transposing(kBlockCount), kBlocks = transposing(4);
  static HWY_INLINE auto dup(const std::array<std::uint8_t, kLanes>& block) { return hn::LoadDup128(kBytes, block.data()); }
#endif
};

// What makes codes of vectors of elements, and packs them.
template <std::size_t kBits, class CodeOf>
class PackingCodes {
 public:
  HWY_INLINE explicit PackingCodes(const CodeOf& code_of) : code_of_(code_of) {}

  // Of a group.
  template <class... T>
  HWY_INLINE void operator()(std::byte* planes, const T*... group) const {
    if constexpr (kVectors<Index> == 1 && kBits <= kMostPackedByMask) {
      const Vector<Index> code = code_of_(load(group, 0)...);
      for (std::size_t k = 0; k < kBits; ++k) store_plane(plane_of<Index>(hn::TestBit(code, hn::Set(kIndex, Index{1} << k)), 0), planes, k);
      return;
    }
    std::uint8_t codes[kLanes];
    for (std::size_t i = 0; i < kVectors<Index>; ++i) {
      constexpr hn::Rebind<std::uint8_t, Tag<Index>> kByte;
      hn::StoreU(hn::DemoteTo(kByte, code_of_(load(group, i)...)), kByte, codes + i * kWidth<Index>);
    }
    Packing<kBits>()(codes, planes);
  }

  static constexpr std::size_t kGroups = Spread<kBits>::kGroups;
  template <class... T>
  HWY_INLINE void all(std::byte* planes, const T*... groups) const {
    Spread<kBits>::store(spread(std::make_index_sequence<Spread<kBits>::kVectorsHeld>(), groups...), planes);
  }

 private:
  template <std::size_t... kVector, class... T>
  HWY_INLINE Vector<Index> spread(std::index_sequence<kVector...>, const T*... groups) const {
    Vector<Index> all = hn::Zero(kIndex);
    ((all = hn::Or(all, hn::ShiftLeft<Spread<kBits>::shift_of(kVector)>(code_at(kVector, groups...)))), ...);
    return all;
  }
  template <class... T>
  HWY_INLINE Vector<Index> code_at(std::size_t vector, const T*... groups) const {
    return code_of_(load(groups, vector)...);
  }

  CodeOf code_of_;
};

template <std::size_t kBits, class CodeOf, class... T>
HWY_INLINE void pack_codes(const CodeOf& code_of, std::span<std::byte> packed, std::size_t n, std::span<const T>... elements) {
  const PackingCodes<kBits, CodeOf> packing(code_of);
  if constexpr (Spread<kBits>::kHas) for_each_groups(n, packing, CodesToPack<kBits>(packed), Column(elements)...);
  else for_each_group(n, packing, CodesToPack<kBits>(packed), Column(elements)...);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_SPREAD_INL_H_
