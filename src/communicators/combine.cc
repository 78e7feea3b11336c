#include "communicators/combine.h"

#include <algorithm>
#include <cstdint>

#include "kernels/half.h"

namespace thinwire {
namespace {

// A block of totals stays in the first-level cache while the workers' blocks stream through.
constexpr std::size_t kBlock = 1024;

template <class T>
T* elements_of(const Collective& collective) {
  return reinterpret_cast<T*>(collective.data.data());
}

template <class T>
void write_to_all(std::span<const Collective> posted, const T* total, std::size_t begin, std::size_t count) {
  for (const Collective& worker : posted) std::copy_n(total, count, elements_of<T>(worker) + begin);
}

template <class T, class Operation>
void combine_plain(std::span<const Collective> posted, std::size_t first, std::size_t last, Operation operation) {
  alignas(64) T total[kBlock];
  for (std::size_t begin = first; begin < last; begin += kBlock) {
    const std::size_t count = std::min(kBlock, last - begin);
    std::copy_n(elements_of<T>(posted[0]) + begin, count, total);
    for (const Collective& worker : posted.subspan(1)) {
      const T* values = elements_of<T>(worker) + begin;
      for (std::size_t i = 0; i < count; ++i) total[i] = operation(total[i], values[i]);
    }
    write_to_all(posted, total, begin, count);
  }
}

using Widen = void (*)(std::span<const std::uint16_t>, float, std::span<float>);
using Round = void (*)(std::span<const float>, float, std::span<std::uint16_t>);

// Sums of sixteen-bit floats are rounded once, after the last worker.
void sum_halves(std::span<const Collective> posted, std::size_t first, std::size_t last, Widen widen, Round round) {
  alignas(64) float total[kBlock];
  alignas(64) float widened[kBlock];
  alignas(64) std::uint16_t rounded[kBlock];
  for (std::size_t begin = first; begin < last; begin += kBlock) {
    const std::size_t count = std::min(kBlock, last - begin);
    widen({elements_of<const std::uint16_t>(posted[0]) + begin, count}, 1, {total, count});
    for (const Collective& worker : posted.subspan(1)) {
      widen({elements_of<const std::uint16_t>(worker) + begin, count}, 1, {widened, count});
      for (std::size_t i = 0; i < count; ++i) total[i] += widened[i];
    }
    round({total, count}, 1, {rounded, count});
    write_to_all(posted, rounded, begin, count);
  }
}

void sum(std::span<const Collective> posted, std::size_t first, std::size_t last) {
  switch (posted[0].type) {
    case ElementType::kFloat32:
      return combine_plain<float>(posted, first, last, [](float a, float b) { return a + b; });
    case ElementType::kBfloat16:
      return sum_halves(posted, first, last, kernels::from_bf16, kernels::to_bf16);
    case ElementType::kFloat16:
      return sum_halves(posted, first, last, kernels::from_fp16, kernels::to_fp16);
    default:  // int32, added as unsigned: the same bits, and overflow wraps
      return combine_plain<std::uint32_t>(posted, first, last, [](std::uint32_t a, std::uint32_t b) { return a + b; });
  }
}

void max(std::span<const Collective> posted, std::size_t first, std::size_t last) {
  if (posted[0].type == ElementType::kFloat32)
    return combine_plain<float>(posted, first, last, [](float a, float b) { return a >= b || a != a ? a : b; });
  combine_plain<std::int32_t>(posted, first, last, [](std::int32_t a, std::int32_t b) { return std::max(a, b); });
}

}  // namespace

bool can_combine(CollectiveKind kind, ElementType type) {
  switch (kind) {
    case CollectiveKind::kSum:
      return type != ElementType::kUint32 && type != ElementType::kUint8;
    case CollectiveKind::kMax:
      return type == ElementType::kFloat32 || type == ElementType::kInt32;
    case CollectiveKind::kUnite:
      return type == ElementType::kUint32;
    default:
      return false;
  }
}

void combine(std::span<const Collective> posted, std::size_t first, std::size_t last) noexcept {
  switch (posted[0].kind) {
    case CollectiveKind::kSum:
      return sum(posted, first, last);
    case CollectiveKind::kMax:
      return max(posted, first, last);
    default:
      return combine_plain<std::uint32_t>(posted, first, last, [](std::uint32_t a, std::uint32_t b) { return a | b; });
  }
}

}  // namespace thinwire
