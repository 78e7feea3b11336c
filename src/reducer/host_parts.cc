#include "reducer/host_parts.h"

#include <algorithm>

#include "core/work.h"

namespace thinwire {
namespace {

std::uint64_t row_elements(const Parameter& parameter) {
  const std::uint64_t rows = parameter.shape.empty() ? 1 : static_cast<std::uint64_t>(parameter.shape.front());
  return parameter.elements() / std::max<std::uint64_t>(rows, 1);
}

// Where a parameter may be cut: at multiples of this.
std::uint64_t smallest_cut(const Parameter& parameter, const ChosenCompressor& chosen) {
  switch (chosen.compressor->unit()) {
    case Unit::kElement:
      return chosen.chunk;
    case Unit::kRow:
    case Unit::kSlice:  // lie in rows, or across what rows there are
      return row_elements(parameter);
    case Unit::kParameter:
      break;
  }
  return parameter.elements();
}

}  // namespace

HostParts divide_layout(const Layout& layout, const Policy& policy, int parts) {
  const auto count = static_cast<std::size_t>(parts);
  HostParts divided(count, std::vector<ParameterRange>(layout.parameters().size()));
  std::vector<std::uint64_t> elements(count), cuts(count);
  std::vector<std::size_t> by_elements(count);
  for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
    const Parameter& parameter = layout.parameters()[i];
    const std::uint64_t cut = std::max<std::uint64_t>(smallest_cut(parameter, policy.compressor_of(i)), 1);
    const std::uint64_t all = (parameter.elements() + cut - 1) / cut;
    std::ranges::fill(cuts, all / count);
    for (std::size_t part = 0; part < count; ++part) by_elements[part] = part;
    std::ranges::stable_sort(by_elements, {}, [&](std::size_t part) { return elements[part]; });
    for (std::size_t more = 0; more < all % count; ++more) ++cuts[by_elements[more]];
    std::uint64_t first = 0;
    for (std::size_t part = 0; part < count; ++part) {
      const std::uint64_t length = std::min(cuts[part] * cut, parameter.elements() - first);
      divided[part][i] = {first, length};
      elements[part] += length;
      first += length;
    }
  }
  return divided;
}

Layout layout_of_part(const Layout& layout, const std::vector<ParameterRange>& part) {
  std::vector<Parameter> parameters;
  for (std::size_t i = 0; i < part.size(); ++i) {
    Parameter parameter = layout.parameters()[i];
    const std::uint64_t row = row_elements(parameter);
    if (part[i].elements != parameter.elements()) {
      const bool rows = parameter.shape.size() > 1 && row > 0 && part[i].first % row == 0 && part[i].elements % row == 0;
      if (rows)
        parameter.shape.front() = static_cast<std::int64_t>(part[i].elements / row);
      else
        parameter.shape = {static_cast<std::int64_t>(part[i].elements)};
    }
    parameters.push_back(std::move(parameter));
  }
  return Layout(std::move(parameters));
}

}  // namespace thinwire
