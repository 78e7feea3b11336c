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
void fold(T* total, const T* values, std::size_t count, Operation operation) {
  for (std::size_t i = 0; i < count; ++i) total[i] = operation(total[i], values[i]);
}

template <class T, class Operation>
void combine_plain(std::span<const Collective> posted, std::size_t first, std::size_t last, Operation operation) {
  alignas(64) T total[kBlock];
  for (std::size_t begin = first; begin < last; begin += kBlock) {
    const std::size_t count = std::min(kBlock, last - begin);
    std::copy_n(elements_of<T>(posted[0]) + begin, count, total);
    for (const Collective& worker : posted.subspan(1)) fold(total, elements_of<const T>(worker) + begin, count, operation);
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

void add_halves(std::span<std::uint16_t> total, std::span<const std::uint16_t> other, Widen widen, Round round) {
  alignas(64) float sum[kBlock];
  alignas(64) float widened[kBlock];
  for (std::size_t begin = 0; begin < total.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, total.size() - begin);
    widen(total.subspan(begin, count), 1, {sum, count});
    widen(other.subspan(begin, count), 1, {widened, count});
    for (std::size_t i = 0; i < count; ++i) sum[i] += widened[i];
    round({sum, count}, 1, total.subspan(begin, count));
  }
}

// Calls visit(T(), operation) with the type of the elements and what combines two of them; not for sixteen-bit floats.
template <class Visit>
void with_operation(CollectiveKind kind, ElementType type, Visit visit) {
  if (kind == CollectiveKind::kUnite) return visit(std::uint32_t(), [](std::uint32_t a, std::uint32_t b) { return a | b; });
  const bool is_sum = kind == CollectiveKind::kSum;
  if (type == ElementType::kFloat32) {
    if (is_sum) return visit(float(), [](float a, float b) { return a + b; });
    return visit(float(), [](float a, float b) { return a >= b || a != a ? a : b; });
  }
  // int32, added as unsigned: the same bits, and overflow wraps
  if (is_sum) return visit(std::uint32_t(), [](std::uint32_t a, std::uint32_t b) { return a + b; });
  visit(std::int32_t(), [](std::int32_t a, std::int32_t b) { return std::max(a, b); });
}

template <class T>
std::span<T> as(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}
template <class T>
std::span<const T> as(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
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
  const ElementType type = posted[0].type;
  if (type == ElementType::kBfloat16) return sum_halves(posted, first, last, kernels::from_bf16, kernels::to_bf16);
  if (type == ElementType::kFloat16) return sum_halves(posted, first, last, kernels::from_fp16, kernels::to_fp16);
  with_operation(posted[0].kind, type, [&]<class T>(T, auto operation) { combine_plain<T>(posted, first, last, operation); });
}

void combine_into(CollectiveKind kind, ElementType type, std::span<std::byte> total, std::span<const std::byte> other) noexcept {
  if (type == ElementType::kBfloat16)
    return add_halves(as<std::uint16_t>(total), as<std::uint16_t>(other), kernels::from_bf16, kernels::to_bf16);
  if (type == ElementType::kFloat16)
    return add_halves(as<std::uint16_t>(total), as<std::uint16_t>(other), kernels::from_fp16, kernels::to_fp16);
  with_operation(kind, type, [&]<class T>(T, auto operation) {
    fold(as<T>(total).data(), as<T>(other).data(), total.size() / sizeof(T), operation);
  });
}

}  // namespace thinwire
