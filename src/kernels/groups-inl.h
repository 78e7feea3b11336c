// How every kernel walks over its spans: in groups of 16 elements, which are 16 virtual lanes. A target keeps a group
// in as many vectors as it needs (AVX3 one, AVX2 two, SSE4 four, SCALAR sixteen), so that each lane sees the same
// operations in the same order everywhere. Included once a target.
#if defined(THINWIRE_KERNELS_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_GROUPS_INL_H_
#undef THINWIRE_KERNELS_GROUPS_INL_H_
#else
#define THINWIRE_KERNELS_GROUPS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(!HWY_HAVE_SCALABLE, "arrays of vectors need vectors of a known size: leave SVE and RVV out");

constexpr std::size_t kLanes = 16;
template <class T>
using Tag = hn::CappedTag<T, kLanes>;
template <class T>
using Vector = hn::Vec<Tag<T>>;
constexpr Tag<float> kFloat{};
template <class T>
constexpr std::size_t kWidth = hn::MaxLanes(Tag<T>());
template <class T>
constexpr std::size_t kVectors = kLanes / kWidth<T>;  // in a group

// The i-th vector of a group.
template <class T>
HWY_INLINE Vector<T> load(const T* group, std::size_t i) {
  return hn::LoadU(Tag<T>(), group + i * kWidth<T>);
}
template <class T>
HWY_INLINE void store(Vector<T> v, T* group, std::size_t i) {
  hn::StoreU(v, Tag<T>(), group + i * kWidth<T>);
}

// Sixteen running values, zero at first.
template <class T>
class Lanes {
 public:
  HWY_INLINE Vector<T>& operator[](std::size_t i) { return vectors_[i]; }
  HWY_INLINE Vector<T> operator[](std::size_t i) const { return vectors_[i]; }

  // All lanes combined, one after another in lane order.
  template <class Combine>
  HWY_INLINE T fold(Combine combine) const {
    T lanes[kLanes];
    for (std::size_t i = 0; i < kVectors<T>; ++i) store(vectors_[i], lanes, i);
    return std::accumulate(lanes + 1, lanes + kLanes, lanes[0], combine);
  }

 private:
  Vector<T> vectors_[kVectors<T>] = {};
};

// Processors' own prefetchers stop at the end of a 4 KiB page; to ask for what comes next makes streaming kernels a tenth to a half faster: into the
// first cache, or, where nothing is written, from further ahead into the second. The address may lie beyond the span, where a prefetch does no harm
// but pointer arithmetic would.
template <std::uintptr_t kDistance, int kLocality>
HWY_INLINE void prefetch_beyond(const void* p) {
  __builtin_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(p) + kDistance), 0, kLocality);
}
HWY_INLINE void prefetch_beyond(const void* p) { prefetch_beyond<2048, 3>(p); }

// What for_each_group() walks over. A column gives the groups of a span and, for a last group that is not full, a
// zero-padded copy that is written back when it goes out of scope.
template <class T, std::uintptr_t kReadAhead = 4096>
class Column {
 public:
  explicit Column(std::span<T> elements) : data_(elements.data()) {}
  HWY_INLINE T* group(std::size_t g) const {
    T* const elements = data_ + g * kLanes;
    if constexpr (std::is_const_v<T>) prefetch_beyond<kReadAhead, 2>(elements);
    else prefetch_beyond<2048, 3>(elements);
    return elements;
  }

  class Tail {
   public:
    Tail(T* elements, std::size_t count) : elements_(elements), count_(count) {
      std::copy_n(elements_, count_, padded_);
    }
    Tail(const Tail&) = delete;
    Tail& operator=(const Tail&) = delete;
    ~Tail() {
      if constexpr (!std::is_const_v<T>) std::copy_n(padded_, count_, elements_);
    }
    T* data() { return padded_; }

   private:
    T* elements_;
    std::size_t count_;
    std::remove_const_t<T> padded_[kLanes] = {};
  };
  Tail tail(std::size_t g, std::size_t count) const { return Tail(data_ + g * kLanes, count); }
  Column from(std::size_t g) const { return Column(data_ + g * kLanes); }

 private:
  explicit Column(T* data) : data_(data) {}

  T* data_;
};

// body(group of each column) for all groups of n elements.
template <class Body, class... Columns>
HWY_INLINE void for_each_group(std::size_t n, Body&& body, const Columns&... columns) {
  const std::size_t full = n / kLanes;
  for (std::size_t g = 0; g < full; ++g) body(columns.group(g)...);
  if (const std::size_t left = n % kLanes) body(columns.tail(full, left).data()...);
}

// The same, so many groups at once where there are: body.all(their elements in each column), then body(those of one group).
template <class Body, class... Columns>
HWY_INLINE void for_each_groups(std::size_t n, const Body& body, const Columns&... columns) {
  std::size_t g = 0;
  for (const std::size_t full = n / kLanes; g + Body::kGroups <= full; g += Body::kGroups) {
    for (std::size_t next = g + 1; next < g + Body::kGroups; ++next) (columns.group(next), ...);  // to prefetch
    body.all(columns.group(g)...);
  }
  for_each_group(n - g * kLanes, body, columns.from(g)...);
}

// Elements that for_each_group() appended to n to fill the last group.
constexpr std::size_t padding(std::size_t n) { return (kLanes - n % kLanes) % kLanes; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_GROUPS_INL_H_
