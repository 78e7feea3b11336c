#include "thinwire/layout.h"

#include <limits>
#include <unordered_set>

#include "core/fingerprint.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

// Throws ArgumentError unless the shape's elements can be counted in 63 bits.
void check_shape(const Parameter& parameter) {
  std::uint64_t elements = 1;
  for (const std::int64_t extent : parameter.shape) {
    if (extent < 0)
      throw ArgumentError("parameter '" + parameter.name + "' has a dimension of " + std::to_string(extent) +
                          "; dimensions must not be negative");
    const auto size = static_cast<std::uint64_t>(extent);
    if (size != 0 && elements > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / size)
      throw ArgumentError("parameter '" + parameter.name + "' has more elements than 64 bits can count");
    elements *= size;
  }
}

}  // namespace

std::uint64_t Parameter::elements() const {
  std::uint64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= static_cast<std::uint64_t>(extent);
  return elements;
}

Layout::Layout(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {
  std::unordered_set<std::string_view> names;
  offsets_.reserve(parameters_.size());
  for (const Parameter& parameter : parameters_) {
    check_shape(parameter);
    if (!names.insert(parameter.name).second)
      throw ArgumentError("parameter name '" + parameter.name + "' occurs twice; state is kept by name, so names must differ");
    offsets_.push_back(elements_);
    elements_ += parameter.elements();
  }
}

Layout Layout::flat(std::uint64_t elements) {
  return Layout({Parameter{"gradient", {static_cast<std::int64_t>(elements)}}});
}

std::uint64_t Layout::fingerprint() const {
  Fingerprint print;
  for (const Parameter& parameter : parameters_) {
    print.add(parameter.name);
    print.add(parameter.shape.size());
    for (const std::int64_t extent : parameter.shape) print.add(static_cast<std::uint64_t>(extent));
  }
  return print.value();
}

}  // namespace thinwire
