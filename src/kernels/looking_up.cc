#include "kernels/codes.h"

#include <algorithm>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/looking_up.cc"
#include "hwy/foreach_target.h"  // must come before the next three
#include "hwy/highway.h"
#include "kernels/codes-inl.h"
#include "kernels/groups-inl.h"

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

// Looks up codes of several workers, of whom each has entries of its own.
template <std::size_t kBits, class Operation, class Entries, std::size_t kWorkers>
struct LookingUp {
  Entries entries[kWorkers];

  template <class... Planes>
  HWY_INLINE void operator()(float* out, Planes*... planes) const {
    const CodesOfGroup<kBits> codes[] = {CodesOfGroup<kBits>(planes)...};
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      Vector<float> sum = Operation()(out, i, entries[0][codes[0][i]]);
      for (std::size_t w = 1; w < kWorkers; ++w) sum = hn::Add(sum, entries[w][codes[w][i]]);
      store(sum, out, i);
    }
  }
};

// out: the elements from `first` on, a whole number of groups.
template <std::size_t kBits, class Operation, class Coded, std::size_t... kWorkers>
HWY_INLINE void look_up_at_once(std::span<const Coded> codes, std::size_t first, std::span<float> out,
                                std::index_sequence<kWorkers...>) {
  using Entries = decltype(entries_of<kBits>(codes[0]));
  const LookingUp<kBits, Operation, Entries, sizeof...(kWorkers)> looking_up{{entries_of<kBits>(codes[kWorkers])...}};
  for_each_group(out.size(), looking_up, Column(out), PackedCodes<kBits>(codes[kWorkers].packed.subspan(first / 8 * kBits))...);
}

template <class Operation, class Coded>
void look_up_with(const Coded& coded, int bits, std::span<float> out) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    look_up_at_once<constant(), Operation>(std::span(&coded, 1), 0, out, std::make_index_sequence<1>());
  });
}

// More workers at once would need more registers than there are.
constexpr std::size_t kAtOnce = 2;
// What is added to in between stays in the first-level cache.
constexpr std::size_t kBlockElements = 2048;

template <std::size_t kBits, class Operation, class Coded>
HWY_INLINE std::span<const Coded> look_up_some(std::span<const Coded> codes, std::size_t first, std::span<float> out) {
  if (codes.size() < kAtOnce) {
    look_up_at_once<kBits, Operation>(codes, first, out, std::make_index_sequence<1>());
    return codes.subspan(1);
  }
  look_up_at_once<kBits, Operation>(codes, first, out, std::make_index_sequence<kAtOnce>());
  return codes.subspan(kAtOnce);
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
