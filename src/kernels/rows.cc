#include "kernels/rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "kernels/hash.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows.cc"
#include "hwy/foreach_target.h"  // must come before the next two
#include "hwy/highway.h"
#include "kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr std::int32_t kInfinityBits = 0x7F800000;
constexpr std::int32_t kMagnitude = 0x7FFFFFFF;

// Of a row: its largest magnitude, as bits, and the OR of all its bits, which tells a zero with a sign.
struct RowBits {
  std::int32_t largest = 0;
  std::int32_t any = 0;
};

struct Looking {
  Lanes<std::int32_t> largest;
  Lanes<std::int32_t> any;
  HWY_INLINE void operator()(const float* values) {
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      const auto bits = hn::BitCast(Tag<std::int32_t>(), load(values, i));
      any[i] = hn::Or(any[i], bits);
      largest[i] = hn::Max(largest[i], hn::And(bits, hn::Set(Tag<std::int32_t>(), kMagnitude)));
    }
  }
};

// A few values are not worth the vectors' end.
HWY_INLINE RowBits look_at_few(std::span<const float> row) {
  RowBits found;
  for (const float value : row) {
    const auto bits = std::bit_cast<std::int32_t>(value);
    found.any |= bits;
    found.largest = std::max(found.largest, bits & kMagnitude);
  }
  return found;
}

HWY_INLINE RowBits look_at(std::span<const float> row) {
  if (row.size() < kLanes) return look_at_few(row);
  Looking looking;
  const std::size_t whole = row.size() / kLanes * kLanes;
  for_each_group(whole, looking, Column(row));
  RowBits found = look_at_few(row.subspan(whole));
  found.any |= looking.any.fold([](std::int32_t a, std::int32_t b) { return a | b; });
  found.largest = std::max(found.largest, looking.largest.fold([](std::int32_t a, std::int32_t b) { return std::max(a, b); }));
  return found;
}

Marked mark_rows(std::span<const float> values, std::size_t row, std::span<std::uint32_t> marks) {
  std::fill(marks.begin(), marks.end(), 0u);
  Marked marked;
  std::size_t r = 0;
  for (std::size_t first = 0; first < values.size(); first += row, ++r) {
    const RowBits found = look_at(values.subspan(first, std::min(row, values.size() - first)));
    if (found.largest != 0)
      marks[r / 32] |= std::uint32_t{1} << (r % 32);
    else
      marked.signed_zeros = marked.signed_zeros || found.any != 0;
    marked.finite = marked.finite && found.largest < kInfinityBits;
  }
  return marked;
}

struct AddingScaled {
  float factor;
  HWY_INLINE void operator()(float* target, const float* source) const {
    for (std::size_t i = 0; i < kVectors<float>; ++i)
      store(hn::Add(load(target, i), hn::Mul(hn::Set(Tag<float>(), factor), load(source, i))), target, i);
  }
};

void add_scaled(std::span<float> target, std::span<const float> source, float factor) {
  for_each_group(target.size(), AddingScaled{factor}, Column(target), Column(source));
}

// The sixteen signs of a group, as sign bits of vectors: bit i of the hash becomes the uppermost of lane i.
class Signs {
 public:
  HWY_INLINE Signs() {
    std::int32_t lanes[kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = static_cast<std::int32_t>(std::uint32_t{1} << i);
    for (std::size_t i = 0; i < kVectors<std::int32_t>; ++i) bit_of_lane_[i] = load(lanes, i);
  }
  HWY_INLINE Vector<float> apply(Vector<float> x, std::uint64_t hashed, std::size_t i) const {
    const Tag<std::int32_t> tag;
    const auto bits = hn::Set(tag, static_cast<std::int32_t>(hashed & 0xFFFF));
    const auto negative = hn::Eq(hn::And(bits, bit_of_lane_[i]), bit_of_lane_[i]);
    const auto sign = hn::IfThenElseZero(negative, hn::Set(tag, static_cast<std::int32_t>(0x80000000u)));
    return hn::Xor(x, hn::BitCast(Tag<float>(), sign));
  }

 private:
  Lanes<std::int32_t> bit_of_lane_;
};

void add_to_sketch(std::span<const float> values, std::uint64_t seed, std::uint32_t cells, std::uint32_t first_cell,
                   std::uint32_t last_cell, std::span<float> table) {
  if (values.empty()) return;
  const Signs signs;
  const Permutation place(seed, sketch_groups(values.size()));
  const auto add = [&](const float* group, std::uint64_t g) {
    const auto cell = static_cast<std::uint32_t>(place(g) % cells);
    const std::uint64_t hashed = hash(seed, g);
    if (cell < first_cell || cell >= last_cell) return;
    float* const sums = table.data() + cell * kSketchGroup;
    for (std::size_t i = 0; i < kVectors<float>; ++i) store(hn::Add(load(sums, i), signs.apply(load(group, i), hashed, i)), sums, i);
  };
  std::uint64_t g = 0;
  for_each_group(values.size(), [&](const float* group) { add(group, g++); }, Column(values));
}

HWY_INLINE Vector<float> median(Vector<float> a, Vector<float> b, Vector<float> c) {
  return hn::Max(hn::Min(a, b), hn::Min(hn::Max(a, b), c));
}

template <std::size_t kTables>
void estimate(std::span<const float> tables, std::span<const std::uint64_t> seeds, std::uint32_t cells, std::uint64_t groups,
              std::uint64_t first_group, SketchFactors factors, std::span<float> values) {
  const Signs signs;
  std::array<std::optional<Permutation>, kTables> places;
  for (std::size_t t = 0; t < kTables; ++t) places[t].emplace(seeds[t], groups);
  std::uint64_t g = first_group;
  const auto estimate = [&](float* group) {
    const float* sums[kTables];
    std::uint64_t hashed[kTables], first_cell = 0;
    for (std::size_t t = 0; t < kTables; ++t) {
      const std::uint64_t cell = (*places[t])(g) % cells;
      if (t == 0) first_cell = cell;
      hashed[t] = hash(seeds[t], g);
      sums[t] = tables.data() + (t * cells + cell) * kSketchGroup;
    }
    const auto factor = hn::Set(Tag<float>(), first_cell < groups % cells ? factors.fuller : factors.emptier);
    ++g;
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      const auto of = [&](std::size_t t) { return signs.apply(load(sums[t], i), hashed[t], i); };
      Vector<float> middle = of(0);
      if constexpr (kTables == 3) middle = median(of(0), of(1), of(2));
      if constexpr (kTables == 5) {
        const auto below = hn::Max(hn::Min(of(0), of(1)), hn::Min(of(2), of(3)));
        const auto above = hn::Min(hn::Max(of(0), of(1)), hn::Max(of(2), of(3)));
        middle = median(below, above, of(4));
      }
      // Targets disagree on the sign of the smaller of two zeros; adding one takes it away.
      store(hn::Add(hn::Mul(middle, factor), hn::Zero(Tag<float>())), group, i);
    }
  };
  for_each_group(values.size(), estimate, Column(values));
}

void estimate_from_sketch(std::span<const float> tables, std::span<const std::uint64_t> seeds, std::uint32_t cells, std::uint64_t groups,
                          std::uint64_t first_group, SketchFactors factors, std::span<float> values) {
  if (seeds.size() == 1) return estimate<1>(tables, seeds, cells, groups, first_group, factors, values);
  if (seeds.size() == 3) return estimate<3>(tables, seeds, cells, groups, first_group, factors, values);
  estimate<5>(tables, seeds, cells, groups, first_group, factors, values);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(mark_rows);
HWY_EXPORT(add_scaled);
HWY_EXPORT(add_to_sketch);
HWY_EXPORT(estimate_from_sketch);

Marked mark_rows(std::span<const float> values, std::size_t row, std::span<std::uint32_t> marks) {
  return HWY_DYNAMIC_DISPATCH(mark_rows)(values, row, marks);
}

// Compilers make vectors of this by themselves.
Marked mark_rows(std::span<const std::uint16_t> values, std::uint16_t infinity, std::size_t row, std::span<std::uint32_t> marks) {
  std::fill(marks.begin(), marks.end(), 0u);
  Marked marked;
  std::size_t r = 0;
  for (std::size_t first = 0; first < values.size(); first += row, ++r) {
    std::uint16_t largest = 0, any = 0;
    for (const std::uint16_t value : values.subspan(first, std::min(row, values.size() - first))) {
      any |= value;
      largest = std::max<std::uint16_t>(largest, value & 0x7FFF);
    }
    if (largest != 0)
      marks[r / 32] |= std::uint32_t{1} << (r % 32);
    else
      marked.signed_zeros = marked.signed_zeros || any != 0;
    marked.finite = marked.finite && largest < infinity;
  }
  return marked;
}

void add_scaled(std::span<float> target, std::span<const float> source, float factor) {
  HWY_DYNAMIC_DISPATCH(add_scaled)(target, source, factor);
}

void add_to_sketch(std::span<const float> values, std::uint64_t seed, std::uint32_t cells, std::uint32_t first_cell,
                   std::uint32_t last_cell, std::span<float> table) {
  HWY_DYNAMIC_DISPATCH(add_to_sketch)(values, seed, cells, first_cell, last_cell, table);
}

void estimate_from_sketch(std::span<const float> tables, std::span<const std::uint64_t> seeds, std::uint32_t cells, std::uint64_t groups,
                          std::uint64_t first_group, SketchFactors factors, std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(estimate_from_sketch)(tables, seeds, cells, groups, first_group, factors, values);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
