#include "tool/samples.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <span>

namespace thinwire::tool {

Layout bucket_layout(std::uint64_t elements, std::uint64_t bucket_elements) {
  constexpr std::uint64_t kRow = 2560;
  std::vector<Parameter> buckets;
  for (std::uint64_t begin = 0; begin < elements; begin += bucket_elements) {
    const std::uint64_t count = std::min(bucket_elements, elements - begin);
    std::vector<std::int64_t> shape = {static_cast<std::int64_t>(count)};
    if (count % kRow == 0) shape = {static_cast<std::int64_t>(count / kRow), static_cast<std::int64_t>(kRow)};
    buckets.push_back({"bucket" + std::to_string(buckets.size()), std::move(shape)});
  }
  return Layout(std::move(buckets));
}

Buckets fill_buckets(Layout layout, std::uint64_t bucket_elements, std::optional<std::uint64_t> first_elements) {
  Buckets buckets{std::move(layout)};
  std::uint64_t filled = 0;
  const auto count = static_cast<std::uint32_t>(buckets.layout.parameters().size());
  for (std::uint32_t parameter = 0; parameter < count; ++parameter) {
    filled += buckets.layout.parameters()[parameter].elements();
    const std::uint64_t full = buckets.ends.empty() ? first_elements.value_or(bucket_elements) : bucket_elements;
    if (filled < full && parameter + 1 < count) continue;
    buckets.ends.push_back(parameter + 1);
    filled = 0;
  }
  return buckets;
}

std::vector<float> gradient_like(std::uint64_t elements, int worker) {
  constexpr std::uint64_t kBlock = 4096;
  std::mt19937_64 random(25 + static_cast<std::uint64_t>(worker));
  std::normal_distribution<float> normal;
  std::vector<float> values(elements);
  for (std::uint64_t begin = 0; begin < elements; begin += kBlock) {
    const float scale = 1e-3f * std::exp(normal(random));
    const auto block = std::span(values).subspan(begin, std::min(kBlock, elements - begin));
    std::ranges::generate(block, [&] { return scale * normal(random); });
  }
  return values;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace thinwire::tool
