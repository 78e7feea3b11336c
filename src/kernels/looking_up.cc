#include "kernels/codes.h"

#include <algorithm>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/looking_up.cc"
#include "hwy/foreach_target.h"  // must come before the next four
#include "hwy/highway.h"
#include "kernels/codes-inl.h"
#include "kernels/groups-inl.h"
#include "kernels/spread-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

struct Replace {
  HWY_INLINE Vector<float> operator()(const float*, std::size_t, Vector<float> entries) const { return entries; }
};
struct Add {
  HWY_INLINE Vector<float> operator()(const float* out, std::size_t i, Vector<float> entries) const {
    return hn::Add(load(out, i), entries);
  }
};

template <std::size_t kBits>
HWY_INLINE Table<kBits> entries_of(const Coded& coded) {
  return Table<kBits>(coded.table);
}
template <std::size_t kBits>
HWY_INLINE Line<kBits> entries_of(const CodedLevels& coded) {
  return Line<kBits>(coded.levels);
}

// Looks up codes of several workers, of whom each has entries of its own: those of the first two are added, then those of the next two to that, and so on.
template <std::size_t kBits, class Operation, class Entries, std::size_t kWorkers>
struct LookingUp {
  Entries entries[kWorkers];

  template <class... Planes>
  HWY_INLINE void operator()(float* out, Planes*... planes) const {
    const CodesOfGroup<kBits> codes[] = {CodesOfGroup<kBits>(planes)...};
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      Vector<float> sum = hn::Zero(Tag<float>());
      for (std::size_t w = 0; w < kWorkers; w += 2) {
        Vector<float> pair = entries[w][codes[w][i]];
        if (w + 1 < kWorkers) pair = hn::Add(pair, entries[w + 1][codes[w + 1][i]]);
        sum = w == 0 ? Operation()(out, i, pair) : hn::Add(sum, pair);
      }
      store(sum, out, i);
    }
  }
};

// What every vector of groups that are read at once becomes: sum_of(the vector's number, a constant).
template <class SumOf, std::size_t... kVector>
HWY_INLINE void store_each(std::index_sequence<kVector...>, float* out, const SumOf& sum_of) {
  (store(sum_of(std::integral_constant<std::size_t, kVector>()), out, kVector), ...);
}

// Where it is sooner to spread codes of many groups than to find each group's.
template <std::size_t kBits, class Operation, class Entries, std::size_t kWorkers>
struct LookingUpMany : LookingUp<kBits, Operation, Entries, kWorkers> {
  static constexpr std::size_t kGroups = Spread<kBits>::kGroups;

  template <class... Planes>
  HWY_INLINE void all(float* out, Planes*... planes) const {
    const Vector<Index> spread[] = {Spread<kBits>::load(planes)...};
    store_each(std::make_index_sequence<Spread<kBits>::kVectorsHeld>(), out, [&](auto vector) HWY_ATTR {
      Vector<float> sum = hn::Zero(Tag<float>());
      for (std::size_t w = 0; w < kWorkers; w += 2) {
        Vector<float> pair = entry<vector()>(w, spread[w]);
        if (w + 1 < kWorkers) pair = hn::Add(pair, entry<vector()>(w + 1, spread[w + 1]));
        sum = w == 0 ? Operation()(out, vector, pair) : hn::Add(sum, pair);
      }
      return sum;
    });
  }

 private:
  template <std::size_t kVector>
  HWY_INLINE Vector<float> entry(std::size_t w, Vector<Index> spread) const {
    return this->entries[w][hn::And(hn::ShiftRight<Spread<kBits>::shift_of(kVector)>(spread), hn::Set(kIndex, (Index{1} << kBits) - 1))];
  }
};

// The sums of what two workers' codes mean, by both codes.
template <std::size_t kBits>
class PairTable {
 public:
  HWY_INLINE PairTable(std::span<const float> first, std::span<const float> second) : table_(sums(first, second)) {}
  HWY_INLINE Vector<float> operator[](Vector<Index> both) const { return table_[both]; }

 private:
  using Sums = std::array<float, std::size_t{1} << (2 * kBits)>;
  static Sums sums(std::span<const float> first, std::span<const float> second) {
    Sums sums;
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = first[i % (std::size_t{1} << kBits)] + second[i >> kBits];
    return sums;
  }
  Table<2 * kBits> table_;
};

// Where a vector holds the sums of two workers' entries, for each of both codes: half as much to look up and to add.
template <std::size_t kBits, class Operation, class Entries, std::size_t kWorkers>
struct LookingUpPairs : LookingUp<kBits, Operation, Entries, kWorkers> {
  static constexpr std::size_t kGroups = Spread<kBits>::kGroups;
  PairTable<kBits> tables[kWorkers / 2];

  template <class... Planes>
  HWY_INLINE void all(float* out, Planes*... planes) const {
    // A worker's codes are in every other field of its own width, the next one's between them.
    const auto every_other = hn::Set(kIndex, kBits == 1 ? 0x55555555 : 0x33333333);
    const Vector<Index> spread[] = {Spread<kBits>::load(planes)...};
    Vector<Index> even[kWorkers / 2], odd[kWorkers / 2];
    for (std::size_t pair = 0; pair < kWorkers / 2; ++pair) {
      const Vector<Index> first = spread[2 * pair], second = spread[2 * pair + 1];
      even[pair] = hn::Or(hn::And(first, every_other), hn::ShiftLeft<kBits>(hn::And(second, every_other)));
      odd[pair] = hn::Or(hn::And(hn::ShiftRight<kBits>(first), every_other), hn::AndNot(every_other, second));
    }
    store_each(std::make_index_sequence<Spread<kBits>::kVectorsHeld>(), out, [&](auto vector) HWY_ATTR {
      constexpr int kShift = Spread<kBits>::shift_of(vector), kAt = kShift / static_cast<int>(2 * kBits) * static_cast<int>(2 * kBits);
      Vector<float> sum = hn::Zero(Tag<float>());
      for (std::size_t pair = 0; pair < kWorkers / 2; ++pair) {
        const Vector<Index> both = hn::ShiftRight<kAt>(kAt == kShift ? even[pair] : odd[pair]);
        const Vector<float> looked_up = tables[pair][hn::And(both, hn::Set(kIndex, (Index{1} << (2 * kBits)) - 1))];
        sum = pair == 0 ? Operation()(out, vector, looked_up) : hn::Add(sum, looked_up);
      }
      return sum;
    });
  }
};

template <std::size_t kBits, class Operation, class Entries, std::size_t kWorkers, std::size_t... kPair>
HWY_INLINE LookingUpPairs<kBits, Operation, Entries, kWorkers> paired(const LookingUp<kBits, Operation, Entries, kWorkers>& by_group, std::span<const Coded> codes,
                                                                     std::index_sequence<kPair...>) {
  return {by_group, {PairTable<kBits>(codes[2 * kPair].table, codes[2 * kPair + 1].table)...}};
}

template <std::size_t kBits, class Entries>
constexpr bool kReadsMany = Spread<kBits>::kHas && Entries::kIsQuick && (kBits >= 4 || HWY_TARGET > HWY_AVX2);
template <std::size_t kBits, class Coded>
constexpr bool kReadsPairs = false;
template <std::size_t kBits>
constexpr bool kReadsPairs<kBits, Coded> = HWY_TARGET != HWY_SCALAR && kBits <= 2 && (std::size_t{1} << (2 * kBits)) <= kWidth<float>;

// out: the elements from `first` on, a whole number of groups.
template <std::size_t kBits, class Operation, class Coded, std::size_t... kWorkers>
HWY_INLINE void look_up_at_once(std::span<const Coded> codes, std::size_t first, std::span<float> out,
                                std::index_sequence<kWorkers...>) {
  using Entries = decltype(entries_of<kBits>(codes[0]));
  constexpr std::size_t kCount = sizeof...(kWorkers);
  const LookingUp<kBits, Operation, Entries, kCount> by_group{{entries_of<kBits>(codes[kWorkers])...}};
  const auto walk = [&](const auto& body, const auto&... columns) HWY_ATTR {
    if constexpr (requires { body.kGroups; }) for_each_groups(out.size(), body, columns...);
    else for_each_group(out.size(), body, columns...);
  };
  if constexpr (kReadsPairs<kBits, Coded> && kCount % 2 == 0)
    walk(paired(by_group, codes, std::make_index_sequence<kCount / 2>()), Column(out), PackedCodes<kBits>(codes[kWorkers].packed.subspan(first / 8 * kBits))...);
  else if constexpr (kReadsMany<kBits, Entries>)
    walk(LookingUpMany<kBits, Operation, Entries, kCount>{by_group}, Column(out), PackedCodes<kBits>(codes[kWorkers].packed.subspan(first / 8 * kBits))...);
  else
    walk(by_group, Column(out), PackedCodes<kBits>(codes[kWorkers].packed.subspan(first / 8 * kBits))...);
}

template <class Operation, class Coded>
void look_up_with(const Coded& coded, int bits, std::span<float> out) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    look_up_at_once<constant(), Operation>(std::span(&coded, 1), 0, out, std::make_index_sequence<1>());
  });
}

// More workers at once would need more registers than there are.
constexpr std::size_t kMostAtOnce = HWY_TARGET <= HWY_AVX3 ? 8 : 2;
// What is added to in between stays in the first-level cache.
constexpr std::size_t kBlockElements = 2048;

template <std::size_t kBits, class Operation, class Coded>
HWY_INLINE std::span<const Coded> look_up_some(std::span<const Coded> codes, std::size_t first, std::span<float> out) {
  const auto look_up = [&](auto count) HWY_ATTR {
    look_up_at_once<kBits, Operation>(codes, first, out, std::make_index_sequence<count()>());
    return codes.subspan(count());
  };
  if (codes.size() >= kMostAtOnce) return look_up(std::integral_constant<std::size_t, kMostAtOnce>());
  if (kMostAtOnce > 4 && codes.size() >= 4) return look_up(std::integral_constant<std::size_t, 4>());
  if (codes.size() >= 2) return look_up(std::integral_constant<std::size_t, 2>());
  return look_up(std::integral_constant<std::size_t, 1>());
}

// The sum for a block of elements from `first` on.
template <std::size_t kBits, class Coded>
HWY_INLINE void look_up_block(std::span<const Coded> codes, std::size_t first, std::span<float> out) {
  auto left = look_up_some<kBits, Replace>(codes, first, out);
  while (!left.empty()) left = look_up_some<kBits, Add>(left, first, out);
}

// visit(first element, number of elements) for all blocks of n elements.
template <class Visit>
HWY_INLINE void for_each_block(std::size_t n, const Visit& visit) {
  for (std::size_t first = 0; first < n; first += kBlockElements) visit(first, std::min(kBlockElements, n - first));
}

template <class Coded>
void look_up_sum_of(std::span<const Coded> codes, int bits, std::span<float> out) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    for_each_block(out.size(), [&](std::size_t first, std::size_t count) HWY_ATTR {
      look_up_block<constant()>(codes, first, out.subspan(first, count));
    });
  });
}

// Dispatch tables want functions, not templates.
void look_up(std::span<const std::byte> packed, int bits, std::span<const float> table, std::span<float> out) {
  look_up_with<Replace>(Coded{packed, table}, bits, out);
}
void look_up_add(std::span<const std::byte> packed, int bits, std::span<const float> table, std::span<float> out) {
  look_up_with<Add>(Coded{packed, table}, bits, out);
}
void compute(std::span<const std::byte> packed, int bits, const Levels& levels, std::span<float> out) {
  look_up_with<Replace>(CodedLevels{packed, levels}, bits, out);
}
void compute_add(std::span<const std::byte> packed, int bits, const Levels& levels, std::span<float> out) {
  look_up_with<Add>(CodedLevels{packed, levels}, bits, out);
}
void look_up_sum(std::span<const Coded> codes, int bits, std::span<float> out) { look_up_sum_of(codes, bits, out); }
void compute_sum(std::span<const CodedLevels> codes, int bits, std::span<float> out) { look_up_sum_of(codes, bits, out); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(look_up_sum);
HWY_EXPORT(compute_sum);
HWY_EXPORT(look_up);
HWY_EXPORT(look_up_add);
HWY_EXPORT(compute);
HWY_EXPORT(compute_add);

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
void look_up_sum(std::span<const Coded> codes, int bits, std::span<float> out) {
  if (codes.empty()) return std::fill(out.begin(), out.end(), 0.0f);
  HWY_DYNAMIC_DISPATCH(look_up_sum)(codes, bits, out);
}
void look_up_sum(std::span<const CodedLevels> codes, int bits, std::span<float> out) {
  if (codes.empty()) return std::fill(out.begin(), out.end(), 0.0f);
  HWY_DYNAMIC_DISPATCH(compute_sum)(codes, bits, out);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
