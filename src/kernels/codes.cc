#include "kernels/codes.h"

#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codes.cc"
#include "hwy/foreach_target.h"  // must come before the next two
#include "hwy/highway.h"
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

using Index = std::int32_t;
constexpr Tag<Index> kIndex{};

template <std::size_t kBits>
constexpr bool kFitsTwoVectors = kWidth<float> > 1 && (std::size_t{1} << kBits) <= 2 * kWidth<float>;

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

// Looks codes up in registers.
template <std::size_t kBits>
  requires kFitsTwoVectors<kBits>
class Table<kBits> {
 public:
  HWY_INLINE explicit Table(std::span<const float> table) {
    float entries[2 * kWidth<float>] = {};
    std::copy_n(table.data(), kEntries, entries);
    low_ = load(entries, 0);
    high_ = load(entries, 1);
  }

  HWY_INLINE Vector<float> operator[](Vector<Index> codes) const {
    if constexpr (kEntries <= kWidth<float>) return hn::TableLookupLanes(low_, lanes(codes));
    const auto last_low = hn::Set(kIndex, static_cast<Index>(kWidth<float> - 1));
    const auto within = lanes(hn::And(codes, last_low));
    const auto in_high = hn::RebindMask(Tag<float>(), hn::Gt(codes, last_low));
    return hn::IfThenElse(in_high, hn::TableLookupLanes(high_, within), hn::TableLookupLanes(low_, within));
  }

 private:
  static constexpr std::size_t kEntries = std::size_t{1} << kBits;
  static HWY_INLINE auto lanes(Vector<Index> codes) { return hn::IndicesFromVec(Tag<float>(), codes); }

  Vector<float> low_, high_;
};

// The values of one cluster. AVX-512 has masked additions; elsewhere a blend costs more than to add zeros, which gives
// the same bits, since a sum that began at +0 is never -0.
class Cluster {
 public:
  HWY_INLINE void add_where(MaskOf<float> mask, std::size_t i, Vector<float> x) {
    const auto counted = hn::RebindMask(kCount, mask);
    if constexpr (HWY_CAP_GE512) {
      sums_[i] = hn::IfThenElse(mask, hn::Add(sums_[i], x), sums_[i]);
      counts_[i] = hn::IfThenElse(counted, hn::Add(counts_[i], hn::Set(kCount, 1)), counts_[i]);
    } else {
      sums_[i] = hn::Add(sums_[i], hn::IfThenElseZero(mask, x));
      counts_[i] = hn::Sub(counts_[i], hn::VecFromMask(kCount, counted));  // true is -1
    }
  }
  HWY_INLINE float sum() const { return sums_.fold(std::plus<float>()); }
  HWY_INLINE std::uint32_t count() const { return static_cast<std::uint32_t>(counts_.fold(std::plus<std::int32_t>())); }

 private:
  static constexpr Tag<std::int32_t> kCount{};
  Lanes<float> sums_;
  Lanes<std::int32_t> counts_;
};

template <std::size_t kBits>
class Assigning {
 public:
  HWY_INLINE explicit Assigning(std::span<const float> thresholds) {
    for (std::size_t t = 0; t < kThresholds; ++t) thresholds_[t] = hn::Set(Tag<float>(), thresholds[t]);
  }

  HWY_INLINE void operator()(const float* values, std::byte* planes) {
    unsigned plane[kBits] = {};
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      MaskOf<float> bits[kBits];
      add(load(values, i), i, bits);
      for (std::size_t k = 0; k < kBits; ++k) plane[k] |= plane_of<float>(bits[k], i);
    }
    for (std::size_t k = 0; k < kBits; ++k) store_plane(plane[k], planes, k);
  }

  HWY_INLINE ClusterSums total() const {
    ClusterSums total;
    for (std::size_t c = 0; c <= kThresholds; ++c) {
      total.sum[c] = clusters_[c].sum();
      total.count[c] = clusters_[c].count();
    }
    return total;
  }

 private:
  static constexpr std::size_t kThresholds = (std::size_t{1} << kBits) - 1;

  // Adds x to its clusters, and finds the bits of its codes. What is above a threshold is above all before it. So the
  // last code reached but not passed is the cluster; and bit k of a code, the parity of code >> k, is the parity of how
  // many multiples of 2^k are reached.
  HWY_INLINE void add(Vector<float> x, std::size_t i, MaskOf<float> (&bits)[kBits]) {
    MaskOf<float> reached = hn::Gt(x, thresholds_[0]);
    clusters_[0].add_where(hn::Not(reached), i, x);
    bits[0] = reached;
#pragma GCC unroll 16
    for (std::size_t code = 2; code <= kThresholds; ++code) {
      const MaskOf<float> passed = hn::Gt(x, thresholds_[code - 1]);
      clusters_[code - 1].add_where(hn::AndNot(passed, reached), i, x);
      reached = passed;
      for (std::size_t k = 0; k < kBits; ++k) {
        const std::size_t step = std::size_t{1} << k;
        if (code % step == 0) bits[k] = code == step ? reached : hn::Xor(bits[k], reached);
      }
    }
    clusters_[kThresholds].add_where(reached, i, x);
  }

  Vector<float> thresholds_[kThresholds];
  Cluster clusters_[kThresholds + 1];
};

// The thresholds that a code's first kLevel bits may lead to, and those of the levels below.
template <std::size_t kLevel, std::size_t kBits>
class SearchLevels {
 public:
  HWY_INLINE explicit SearchLevels(std::span<const float> thresholds)
      : entries_(every(thresholds)), table_(entries_), below_(thresholds) {}
  SearchLevels(const SearchLevels&) = delete;
  SearchLevels& operator=(const SearchLevels&) = delete;

  // Finds the rest of the codes of a group's i-th vector.
  HWY_INLINE void descend(Vector<float> x, std::size_t i, Vector<Index>& code, unsigned (&plane)[kBits]) const {
    const MaskOf<float> above = hn::Gt(x, table_[code]);
    plane[kBits - 1 - kLevel] |= plane_of<float>(above, i);
    code = hn::Sub(hn::Add(code, code), hn::VecFromMask(kIndex, hn::RebindMask(kIndex, above)));  // true is -1
    below_.descend(x, i, code, plane);
  }

 private:
  using Entries = std::array<float, std::size_t{1} << kLevel>;
  static Entries every(std::span<const float> thresholds) {
    constexpr std::size_t kStride = std::size_t{1} << (kBits - kLevel);
    Entries entries;
    for (std::size_t e = 0; e < entries.size(); ++e) entries[e] = thresholds[e * kStride + kStride / 2 - 1];
    return entries;
  }

  Entries entries_;
  Table<kLevel> table_;
  SearchLevels<kLevel + 1, kBits> below_;
};
template <std::size_t kBits>
class SearchLevels<kBits, kBits> {
 public:
  explicit SearchLevels(std::span<const float>) {}
  HWY_INLINE void descend(Vector<float>, std::size_t, Vector<Index>&, unsigned (&)[kBits]) const {}
};

// More thresholds than registers hold: a value searches its code, most significant bit first. Sums are added one value
// after another, as no two values of a group share a lane.
template <std::size_t kBits>
class Searching {
 public:
  HWY_INLINE explicit Searching(std::span<const float> thresholds) : levels_(thresholds) {}

  HWY_INLINE void operator()(const float* values, std::byte* planes) {
    unsigned plane[kBits] = {};
    Index codes[kLanes];
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      Vector<Index> code = hn::Zero(kIndex);
      levels_.descend(load(values, i), i, code, plane);
      store(code, codes, i);
    }
    for (std::size_t k = 0; k < kBits; ++k) store_plane(plane[k], planes, k);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto code = static_cast<std::size_t>(codes[lane]);
      sums_[code][lane] += values[lane];
      ++counts_[code];
    }
  }

  HWY_INLINE ClusterSums total() const {
    ClusterSums total;
    for (std::size_t c = 0; c < kClusters; ++c) {
      total.sum[c] = std::accumulate(sums_[c] + 1, sums_[c] + kLanes, sums_[c][0]);
      total.count[c] = counts_[c];
    }
    return total;
  }

 private:
  static constexpr std::size_t kClusters = std::size_t{1} << kBits;

  SearchLevels<0, kBits> levels_;
  float sums_[kClusters][kLanes] = {};
  std::uint32_t counts_[kClusters] = {};
};

constexpr std::size_t kMostComparedBits = 4;

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

struct Replace {
  HWY_INLINE Vector<float> operator()(const float*, std::size_t, Vector<float> entries) const { return entries; }
};
struct Add {
  HWY_INLINE Vector<float> operator()(const float* out, std::size_t i, Vector<float> entries) const {
    return hn::Add(load(out, i), entries);
  }
};

template <std::size_t kBits, class Operation, class Entries>
struct LookingUp {
  Entries table;
  HWY_INLINE void operator()(const std::byte* planes, float* out) const {
    std::uint8_t codes[kLanes];
    Unpacking<kBits>()(planes, codes);
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      const auto narrow = hn::LoadU(hn::Rebind<std::uint8_t, Tag<Index>>(), codes + i * kWidth<Index>);
      store(Operation()(out, i, table[hn::PromoteTo(kIndex, narrow)]), out, i);
    }
  }
};

void pack(std::span<const std::uint8_t> codes, int bits, std::span<std::byte> packed) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    for_each_group(codes.size(), Packing<constant()>(), Column(codes), CodesToPack<constant()>(packed));
  });
}

void unpack(std::span<const std::byte> packed, int bits, std::span<std::uint8_t> codes) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    for_each_group(codes.size(), Unpacking<constant()>(), PackedCodes<constant()>(packed), Column(codes));
  });
}

ClusterSums assign(std::span<const float> values, std::span<const float> thresholds, int bits,
                   std::span<std::byte> packed) {
  ClusterSums clusters = with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    std::conditional_t<(constant() <= kMostComparedBits), Assigning<constant()>, Searching<constant()>> assigning(thresholds);
    for_each_group(values.size(), assigning, Column(values), CodesToPack<constant()>(packed));
    return assigning.total();
  });
  std::size_t zero = 0;  // the code of the zeros in the padding
  while (zero < thresholds.size() && 0 > thresholds[zero]) ++zero;
  clusters.count[zero] -= static_cast<std::uint32_t>(padding(values.size()));
  return clusters;
}

template <class Operation>
void look_up_with(std::span<const std::byte> packed, int bits, std::span<const float> table, std::span<float> out) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    const LookingUp<constant(), Operation, Table<constant()>> looking_up{Table<constant()>(table)};
    for_each_group(out.size(), looking_up, PackedCodes<constant()>(packed), Column(out));
  });
}

template <class Operation>
void compute_with(std::span<const std::byte> packed, int bits, const Levels& levels, std::span<float> out) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    const LookingUp<constant(), Operation, Line<constant()>> looking_up{Line<constant()>(levels)};
    for_each_group(out.size(), looking_up, PackedCodes<constant()>(packed), Column(out));
  });
}

// Dispatch tables want functions, not templates.
void look_up(std::span<const std::byte> packed, int bits, std::span<const float> table, std::span<float> out) {
  look_up_with<Replace>(packed, bits, table, out);
}
void look_up_add(std::span<const std::byte> packed, int bits, std::span<const float> table, std::span<float> out) {
  look_up_with<Add>(packed, bits, table, out);
}
void compute(std::span<const std::byte> packed, int bits, const Levels& levels, std::span<float> out) {
  compute_with<Replace>(packed, bits, levels, out);
}
void compute_add(std::span<const std::byte> packed, int bits, const Levels& levels, std::span<float> out) {
  compute_with<Add>(packed, bits, levels, out);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(pack);
HWY_EXPORT(unpack);
HWY_EXPORT(assign);
HWY_EXPORT(look_up);
HWY_EXPORT(look_up_add);
HWY_EXPORT(compute);
HWY_EXPORT(compute_add);

void pack(std::span<const std::uint8_t> codes, int bits, std::span<std::byte> packed) {
  HWY_DYNAMIC_DISPATCH(pack)(codes, bits, packed);
}
void unpack(std::span<const std::byte> packed, int bits, std::span<std::uint8_t> codes) {
  HWY_DYNAMIC_DISPATCH(unpack)(packed, bits, codes);
}
ClusterSums assign(std::span<const float> values, std::span<const float> thresholds, int bits,
                   std::span<std::byte> packed) {
  return HWY_DYNAMIC_DISPATCH(assign)(values, thresholds, bits, packed);
}
void look_up(std::span<const std::byte> packed, int bits, std::span<const float> table, std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(look_up)(packed, bits, table, out);
}
void look_up_add(std::span<const std::byte> packed, int bits, std::span<const float> table, std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(look_up_add)(packed, bits, table, out);
}
void look_up(std::span<const std::byte> packed, int bits, const Levels& levels, std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(compute)(packed, bits, levels, out);
}
void look_up_add(std::span<const std::byte> packed, int bits, const Levels& levels, std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(compute_add)(packed, bits, levels, out);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
