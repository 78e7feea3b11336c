// Packed codes, group by group, as codes.h says that they lie in memory: made of bytes, and back. Included once a target.
#if defined(THINWIRE_KERNELS_PLANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_PLANES_INL_H_
#undef THINWIRE_KERNELS_PLANES_INL_H_
#else
#define THINWIRE_KERNELS_PLANES_INL_H_
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
  PlaneColumn from(std::size_t g) const { return PlaneColumn(group(g)); }

 private:
  explicit PlaneColumn(Byte* data) : data_(data) {}

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
// Matrices of 8 x 8 bits, whose rows are bytes: two of a group.
constexpr hn::Repartition<std::uint64_t, Tag<std::uint8_t>> kMatrix{};

template <int kDistance, class Matrices>
HWY_INLINE Matrices exchanged(Matrices x, std::uint64_t above) {
  const Matrices differing = hn::And(hn::Xor(x, hn::ShiftRight<kDistance>(x)), hn::Set(hn::DFromV<Matrices>(), above));
  return hn::Xor(hn::Xor(x, differing), hn::ShiftLeft<kDistance>(differing));
}
// Blocks of one, two and four bits a side change places with those across the diagonal.
template <class Matrices>
HWY_INLINE Matrices transposed(Matrices x) {
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
// Codes of groups, a byte each, are the rows of two matrices a group, whose columns are halves of planes: their planes in order, and back.
template <class Bytes>
HWY_INLINE Bytes transposed_bytes(Bytes rows) {
  constexpr hn::DFromV<Bytes> kBytes;
  constexpr hn::Repartition<std::uint64_t, decltype(kBytes)> kMatrices;
  return hn::BitCast(kBytes, transposed(hn::BitCast(kMatrices, rows)));
}
template <class Codes>
HWY_INLINE Codes planes_of(Codes codes) {
  alignas(kLanes) static constexpr std::uint8_t kHalves[kLanes] = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
  return hn::TableLookupBytes(transposed_bytes(codes), hn::LoadDup128(hn::DFromV<Codes>(), kHalves));
}
template <class Planes>
HWY_INLINE Planes codes_of(Planes planes) {
  alignas(kLanes) static constexpr std::uint8_t kColumns[kLanes] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
  return transposed_bytes(hn::TableLookupBytes(planes, hn::LoadDup128(hn::DFromV<Planes>(), kColumns)));
}

template <std::size_t kBits>
  requires(kBits > kMostPackedByPlane)
struct Packing<kBits> {
  HWY_INLINE void operator()(const std::uint8_t* codes, std::byte* planes) const {
    constexpr Tag<std::uint8_t> kBytes;
    std::uint8_t all[kLanes];
    hn::StoreU(planes_of(hn::LoadU(kBytes, codes)), kBytes, all);
    std::memcpy(planes, all, kBits * kPlaneBytes);
  }
};
#endif

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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_PLANES_INL_H_
