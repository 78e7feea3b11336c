// What a gradient consists of: named parameters, one behind the other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace thinwire {

struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;  // empty: a scalar

  std::uint64_t elements() const;
};

class Layout {
 public:
  // Throws ArgumentError for a negative dimension or a name that occurs twice.
  explicit Layout(std::vector<Parameter> parameters);

  // One parameter without structure, for gradients that come without a layout.
  static Layout flat(std::uint64_t elements);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  std::uint64_t elements() const { return elements_; }
  // Where parameter `index` begins, in elements.
  std::uint64_t offset(std::size_t index) const { return offsets_[index]; }
  // Equal for equal names and shapes in equal order; workers compare it before they exchange anything.
  std::uint64_t fingerprint() const;

 private:
  std::vector<Parameter> parameters_;
  std::vector<std::uint64_t> offsets_;
  std::uint64_t elements_ = 0;
};

}  // namespace thinwire
