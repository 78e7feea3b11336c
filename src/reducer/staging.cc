#include "reducer/staging.h"

#include <algorithm>

#include "kernels/half.h"
#include "kernels/statistics.h"

namespace thinwire {
namespace {

template <class T>
std::span<T> elements_of(const ParameterGradient& gradient, std::uint64_t first, std::uint64_t count) {
  return std::span<T>(reinterpret_cast<T*>(gradient.data.data()), gradient.data.size() / sizeof(T)).subspan(first, count);
}

}  // namespace

void load(const ParameterGradient& gradient, std::uint64_t first, std::span<float> values) {
  switch (gradient.type) {
    case ElementType::kBfloat16:
      return kernels::from_bf16(elements_of<std::uint16_t>(gradient, first, values.size()), 1.0f, values);
    case ElementType::kFloat16:
      return kernels::from_fp16(elements_of<std::uint16_t>(gradient, first, values.size()), 1.0f, values);
    default:
      std::ranges::copy(elements_of<float>(gradient, first, values.size()), values.begin());
  }
}

void store(std::span<const float> values, const ParameterGradient& gradient, std::uint64_t first) {
  switch (gradient.type) {
    case ElementType::kBfloat16:
      return kernels::to_bf16(values, 1.0f, elements_of<std::uint16_t>(gradient, first, values.size()));
    case ElementType::kFloat16:
      return kernels::to_fp16(values, 1.0f, elements_of<std::uint16_t>(gradient, first, values.size()));
    default:
      std::ranges::copy(values, elements_of<float>(gradient, first, values.size()).begin());
  }
}

void fill(const ParameterGradient& gradient, float value) {
  const std::uint64_t elements = gradient.data.size() / element_bytes(gradient.type);
  for (std::uint64_t i = 0; i < elements; ++i) store({&value, 1}, gradient, i);
}

bool is_finite(const ParameterGradient& gradient, std::uint64_t first, std::uint64_t elements, std::span<float> buffer) {
  if (gradient.type == ElementType::kFloat32) return kernels::scan(elements_of<float>(gradient, first, elements)).finite;
  for (std::uint64_t done = 0; done < elements; done += buffer.size()) {
    const auto part = buffer.first(std::min<std::uint64_t>(buffer.size(), elements - done));
    load(gradient, first + done, part);
    if (!kernels::scan(part).finite) return false;
  }
  return true;
}

std::span<float> room_for_floats(const ParameterGradient& gradient, std::uint64_t first, std::uint64_t elements,
                                 Scratch& scratch) {
  if (gradient.type == ElementType::kFloat32) return elements_of<float>(gradient, first, elements);
  return scratch.take<float>(elements);
}

}  // namespace thinwire
