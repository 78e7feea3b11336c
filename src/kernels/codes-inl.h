// Packed codes, group by group (codes.h says how they lie in memory), and the tables that say what they mean. Included once a
// target.
#if defined(THINWIRE_KERNELS_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_CODES_INL_H_
#undef THINWIRE_KERNELS_CODES_INL_H_
#else
#define THINWIRE_KERNELS_CODES_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/codes.h"
#include "kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

// One bit of the codes of a group: bit e belongs to element e.
using Plane = std::uint16_t;
constexpr std::size_t kPlaneBytes = sizeof(Plane);
static_assert(std::endian::native == std::endian::little, "planes are little-endian in memory");

HWY_INLINE Plane load_plane(const std::byte* planes, std::size_t k) {
  Plane plane;
  std::memcpy(&plane, planes + k * kPlaneBytes, kPlaneBytes);
  return plane;
}
HWY_INLINE void store_plane(unsigned plane, std::byte* planes, std::size_t k) {
  const Plane low = static_cast<Plane>(plane);
  std::memcpy(planes + k * kPlaneBytes, &low, kPlaneBytes);
}

template <class T>
using MaskOf = hn::Mask<Tag<T>>;

// The lanes of a group's i-th vector that are set in a plane, and back. Highway wants eight bytes.
template <class T>
HWY_INLINE MaskOf<T> mask_of(Plane plane, std::size_t i) {
  const std::uint64_t bits = static_cast<std::uint64_t>(plane) >> (i * kWidth<T>);
  std::uint8_t bytes[sizeof bits];
  std::memcpy(bytes, &bits, sizeof bits);
  return hn::LoadMaskBits(Tag<T>(), bytes);
}
template <class T>
HWY_INLINE unsigned plane_of(MaskOf<T> mask, std::size_t i) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(Tag<T>(), mask, bytes);
  return static_cast<unsigned>(load_plane(reinterpret_cast<const std::byte*>(bytes), 0)) << (i * kWidth<T>);
}

// A column of packed codes, for for_each_group(). Its tail is held as full planes, and as a string of bits in memory.
template <std::size_t kBits, class Byte>
class PlaneColumn {
 public:
  explicit PlaneColumn(std::span<Byte> packed) : data_(packed.data()) {}
  HWY_INLINE Byte* group(std::size_t g) const { return data_ + g * kBits * kPlaneBytes; }

  class Tail {
   public:
    Tail(Byte* string, std::size_t count) : string_(string), count_(count) {
      if constexpr (std::is_const_v<Byte>) read();
    }
    Tail(const Tail&) = delete;
    Tail& operator=(const Tail&) = delete;
    ~Tail() {
      if constexpr (!std::is_const_v<Byte>) write();
    }
    std::byte* data() { return planes_; }

   private:
    void read() {
      const Byte* next = string_;
      unsigned window = 0;  // bits of the string that are not in a plane yet
      std::size_t held = 0;
      for (std::size_t k = 0; k < kBits; ++k) {
        for (; held < count_; held += 8) window |= std::to_integer<unsigned>(*next++) << held;
        store_plane(window & ((1U << count_) - 1), planes_, k);
        window >>= count_;
        held -= count_;
      }
    }
    void write() {
      Byte* next = string_;
      unsigned window = 0;
      std::size_t held = 0;
      for (std::size_t k = 0; k < kBits; ++k) {
        window |= (load_plane(planes_, k) & ((1U << count_) - 1)) << held;
        for (held += count_; held >= 8; held -= 8, window >>= 8) *next++ = static_cast<std::byte>(window & 0xFF);
      }
      if (held > 0) *next = static_cast<std::byte>(window);
    }

    Byte* string_;
    std::size_t count_;
    std::byte planes_[kBits * kPlaneBytes] = {};
  };
  Tail tail(std::size_t g, std::size_t count) const { return Tail(group(g), count); }

 private:
  Byte* data_;
};
template <std::size_t kBits>
using PackedCodes = PlaneColumn<kBits, const std::byte>;
template <std::size_t kBits>
using CodesToPack = PlaneColumn<kBits, std::byte>;

// Calls function with the number of bits as a constant, from 1 to kMost.
template <int kMost, class Function>
HWY_INLINE auto with_constant_bits(int bits, const Function& function) {
  if constexpr (kMost > 1) {
    if (bits < kMost) return with_constant_bits<kMost - 1>(bits, function);
  }
  return function(std::integral_constant<std::size_t, kMost>());
}

#if HWY_TARGET != HWY_SCALAR
// Two matrices of 8 x 8 bits, whose rows are bytes.
constexpr hn::Repartition<std::uint64_t, Tag<std::uint8_t>> kMatrix{};
using Matrix = hn::Vec<decltype(kMatrix)>;

template <int kDistance>
HWY_INLINE Matrix exchanged(Matrix x, std::uint64_t above) {
  const Matrix differing = hn::And(hn::Xor(x, hn::ShiftRight<kDistance>(x)), hn::Set(kMatrix, above));
  return hn::Xor(hn::Xor(x, differing), hn::ShiftLeft<kDistance>(differing));
}
// Blocks of one, two and four bits a side change places with those across the diagonal.
HWY_INLINE Matrix transposed(Matrix x) {
  return exchanged<28>(exchanged<14>(exchanged<7>(x, 0x00AA00AA00AA00AA), 0x0000CCCC0000CCCC), 0x00000000F0F0F0F0);
}
#endif

// Up to so many, planes are made, and read, one by one sooner than all at once.
constexpr std::size_t kMostPackedByPlane = 4, kMostUnpackedByPlane = 3;
constexpr std::size_t kMostPackedByMask = 6;  // where a vector is a group, so that masks are planes

// Codes of a group, a byte each, and back.
template <std::size_t kBits>
struct Packing {
  HWY_INLINE void operator()(const std::uint8_t* codes, std::byte* planes) const {
    using T = std::uint8_t;
    unsigned plane[kBits] = {};
    for (std::size_t i = 0; i < kVectors<T>; ++i) {
      const Vector<T> code = load(codes, i);
      for (std::size_t k = 0; k < kBits; ++k) {
        plane[k] |= plane_of<T>(hn::TestBit(code, hn::Set(Tag<T>(), static_cast<T>(1 << k))), i);
      }
    }
    for (std::size_t k = 0; k < kBits; ++k) store_plane(plane[k], planes, k);
  }
};

#if HWY_TARGET != HWY_SCALAR
// Codes of a group are the rows of two matrices, whose columns are halves of planes.
template <std::size_t kBits>
  requires(kBits > kMostPackedByPlane)
struct Packing<kBits> {
  HWY_INLINE void operator()(const std::uint8_t* codes, std::byte* planes) const {
    constexpr Tag<std::uint8_t> kBytes;
    const auto columns = hn::BitCast(kBytes, transposed(hn::BitCast(kMatrix, hn::LoadU(kBytes, codes))));
    std::uint8_t halves[kLanes];
    hn::StoreU(hn::TableLookupBytes(columns, hn::LoadU(kBytes, kHalves.data())), kBytes, halves);
    std::memcpy(planes, halves, kBits * kPlaneBytes);
  }

 private:
  static constexpr std::array<std::uint8_t, kLanes> kHalves = [] {
    std::array<std::uint8_t, kLanes> halves{};
    for (std::size_t i = 0; i < kLanes; ++i) halves[i] = static_cast<std::uint8_t>(i % kPlaneBytes * 8 + i / kPlaneBytes);
    return halves;
  }();
};
#endif

using Index = std::int32_t;
constexpr Tag<Index> kIndex{};

// A group's codes, of which code_of(i) makes the i-th vector.
template <std::size_t kBits, class CodeOf>
HWY_INLINE void pack_group(const CodeOf& code_of, std::byte* planes) {
  if constexpr (kVectors<Index> == 1 && kBits <= kMostPackedByMask) {
    const Vector<Index> code = code_of(0);
    for (std::size_t k = 0; k < kBits; ++k) store_plane(plane_of<Index>(hn::TestBit(code, hn::Set(kIndex, Index{1} << k)), 0), planes, k);
    return;
  }
  constexpr hn::Rebind<std::uint8_t, Tag<Index>> kByte;
  std::uint8_t codes[kLanes];
#if HWY_TARGET != HWY_SCALAR
  for (std::size_t i = 0; i + 1 < kVectors<float>; i += 2) {  // in stores as long as can be, which loads follow sooner
    constexpr hn::Twice<decltype(kByte)> kBytes;
    const auto low = hn::DemoteTo(kByte, code_of(i)), high = hn::DemoteTo(kByte, code_of(i + 1));
    hn::StoreU(hn::Combine(kBytes, high, low), kBytes, codes + i * kWidth<Index>);
  }
  if (kVectors<float> == 1) hn::StoreU(hn::DemoteTo(kByte, code_of(0)), kByte, codes);
#else
  for (std::size_t i = 0; i < kVectors<float>; ++i) hn::StoreU(hn::DemoteTo(kByte, code_of(i)), kByte, codes + i * kWidth<Index>);
#endif
  Packing<kBits>()(codes, planes);
}

template <std::size_t kBits>
struct Unpacking {
  HWY_INLINE void operator()(const std::byte* planes, std::uint8_t* codes) const {
    using T = std::uint8_t;
    for (std::size_t i = 0; i < kVectors<T>; ++i) {
      Vector<T> code = hn::Zero(Tag<T>());
      for (std::size_t k = 0; k < kBits; ++k) {
        const MaskOf<T> set = mask_of<T>(load_plane(planes, k), i);
        code = hn::Or(code, hn::IfThenElseZero(set, hn::Set(Tag<T>(), static_cast<T>(1 << k))));
      }
      store(code, codes, i);
    }
  }
};

#if HWY_TARGET != HWY_SCALAR
// Codes of a group are the columns of two matrices of 8 x 8 bits, whose rows are bytes of planes.
template <std::size_t kBits>
  requires(kBits > kMostUnpackedByPlane)
struct Unpacking<kBits> {
  HWY_INLINE void operator()(const std::byte* planes, std::uint8_t* codes) const {
    constexpr Tag<std::uint8_t> kBytes;
    constexpr hn::Half<Tag<std::uint8_t>> kEight;
    const auto bytes = reinterpret_cast<const std::uint8_t*>(planes);
    const auto first_eight = hn::LoadU(kEight, bytes), last_eight = hn::LoadU(kEight, bytes + kInGroup - 8);
    const auto rows = hn::Combine(kBytes, last_eight, first_eight);
    const auto matrices = hn::TableLookupBytesOr0(rows, hn::LoadU(kBytes, kRows.data()));
    hn::StoreU(hn::BitCast(kBytes, transposed(hn::BitCast(kMatrix, matrices))), kBytes, codes);
  }

 private:
  static constexpr std::size_t kInGroup = kBits * kPlaneBytes;
  static_assert(kInGroup >= 8);

  // Where among the first eight and the last eight bytes of a group each row is; 0x80 for rows of zeros.
  static constexpr std::array<std::uint8_t, kLanes> kRows = [] {
    std::array<std::uint8_t, kLanes> rows{};
    for (std::size_t row = 0; row < kLanes; ++row) {
      const std::size_t byte = row % 8 * kPlaneBytes + row / 8;
      rows[row] = static_cast<std::uint8_t>(byte >= kInGroup ? 0x80 : byte < 8 ? byte : byte + 16 - kInGroup);
    }
    return rows;
  }();
};
#endif

constexpr std::size_t kMostShiftedBits = 4;

// The codes of a group, vector by vector.
template <std::size_t kBits>
class CodesOfGroup {
 public:
  HWY_INLINE explicit CodesOfGroup(const std::byte* planes) { Unpacking<kBits>()(planes, codes_); }
  HWY_INLINE Vector<Index> operator[](std::size_t i) const {
    return hn::PromoteTo(kIndex, hn::LoadU(hn::Rebind<std::uint8_t, Tag<Index>>(), codes_ + i * kWidth<Index>));
  }

 private:
  std::uint8_t codes_[kLanes];
};

#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
// Lanes that can be shifted by a number each take their bits from two planes at a time, which are the halves of a word.
template <std::size_t kBits>
  requires(kBits <= kMostShiftedBits)
class CodesOfGroup<kBits> {
 public:
  HWY_INLINE explicit CodesOfGroup(const std::byte* planes) {
    for (std::size_t p = 0; p < kPairs; ++p) {
      std::uint32_t pair = 0;
      std::memcpy(&pair, planes + 2 * p * kPlaneBytes, std::min(std::size_t{2}, kBits - 2 * p) * kPlaneBytes);
      pairs_[p] = pair;
    }
  }
  HWY_INLINE Vector<Index> operator[](std::size_t i) const {
    constexpr Tag<std::uint32_t> kWord;
    const auto lane = hn::Iota(kWord, static_cast<std::uint32_t>(i * kWidth<Index>));
    Vector<Index> codes = hn::Zero(kIndex), none = hn::Zero(kIndex);
    for (std::size_t p = 0; p < kPairs; ++p) {
      const auto bits = hn::And(hn::Shr(hn::Set(kWord, pairs_[p]), lane), hn::Set(kWord, 0x00010001));
      const auto weights = hn::Set(kWord, 0x00020001u << (2 * p));
      codes = hn::ReorderWidenMulAccumulate(kIndex, hn::BitCast(kHalves, bits), hn::BitCast(kHalves, weights), codes, none);
    }
    return codes;
  }

 private:
  static constexpr std::size_t kPairs = (kBits + 1) / 2;
  static constexpr hn::Repartition<std::int16_t, Tag<Index>> kHalves{};
  std::uint32_t pairs_[kPairs];
};
#endif

template <std::size_t kBits>
constexpr bool kFitsTwoVectors = (std::size_t{1} << kBits) <= 2 * kWidth<float>;

// Looks codes up in memory.
template <std::size_t kBits>
class Table {
 public:
  HWY_INLINE explicit Table(std::span<const float> table) : table_(table.data()) {}
  HWY_INLINE Vector<float> operator[](Vector<Index> codes) const {
    return hn::GatherIndex(Tag<float>(), table_, codes);
  }

 private:
  const float* table_;
};

#if HWY_TARGET != HWY_SCALAR
// Looks codes up in registers.
template <std::size_t kBits>
  requires kFitsTwoVectors<kBits>
class Table<kBits> {
 public:
  HWY_INLINE explicit Table(std::span<const float> table) : low_(first<kInLow>(table.data())) {
    if constexpr (kEntries > kInLow) high_ = first<kEntries - kInLow>(table.data() + kInLow);
  }

  HWY_INLINE Vector<float> operator[](Vector<Index> codes) const {
    if constexpr (kEntries <= kInLow) return hn::TableLookupLanes(low_, lanes(codes));
    const auto last_low = hn::Set(kIndex, static_cast<Index>(kWidth<float> - 1));
    const auto within = lanes(hn::And(codes, last_low));
    const auto in_high = hn::RebindMask(Tag<float>(), hn::Gt(codes, last_low));
    return hn::IfThenElse(in_high, hn::TableLookupLanes(high_, within), hn::TableLookupLanes(low_, within));
  }

 private:
  static constexpr std::size_t kEntries = std::size_t{1} << kBits;
  static constexpr std::size_t kInLow = std::min(kEntries, kWidth<float>);
  static HWY_INLINE auto lanes(Vector<Index> codes) { return hn::IndicesFromVec(Tag<float>(), codes); }
  // A vector that begins with so many entries, and reads no others.
  template <std::size_t kCount>
  static HWY_INLINE Vector<float> first(const float* entries) {
    constexpr Tag<float> kTag;
    if constexpr (kCount == kWidth<float>) return load(entries, 0);
    else if constexpr (kCount == 1) return hn::Set(kTag, entries[0]);
    else if constexpr (kCount == 2) return hn::OddEven(hn::Set(kTag, entries[1]), hn::Set(kTag, entries[0]));
    else if constexpr (kCount == 4) return hn::LoadDup128(kTag, entries);
    else return hn::ZeroExtendVector(kTag, hn::LoadU(hn::Half<Tag<float>>(), entries));
  }

  Vector<float> low_;
  Vector<float> high_;
};
#endif

// Computes what codes mean, where the table is evenly spaced.
template <std::size_t kBits>
class Line {
 public:
  HWY_INLINE explicit Line(const Levels& levels) : largest_(levels.largest), step_(levels.step) {}
  HWY_INLINE Vector<float> operator[](Vector<Index> codes) const {
    const auto level = hn::Sub(hn::Min(codes, hn::Set(kIndex, largest_)), hn::Set(kIndex, largest_ / 2));
    return hn::Mul(hn::ConvertTo(Tag<float>(), level), hn::Set(Tag<float>(), step_));
  }

 private:
  Index largest_;
  float step_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_CODES_INL_H_
