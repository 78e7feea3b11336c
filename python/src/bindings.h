// The parts of the module, and what they share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/layout.h"
#include "thinwire/reducer.h"

namespace thinwire::python {

namespace nb = nanobind;

// Names and shapes of the parameters, one behind the other.
using LayoutPairs = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;
// Patterns and specs.
using RulePairs = std::vector<std::pair<std::string, std::string>>;

// What gradients, or numbers, lie in: flat, on the host.
using Bucket = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;
ElementType gradient_type(const Bucket& bucket);  // throws ArgumentError

Layout make_layout(LayoutPairs pairs);
std::vector<Rule> make_rules(RulePairs pairs);

// Hands `values` over to an array of one dimension that owns them.
template <class Framework, class T>
nb::ndarray<Framework, T, nb::ndim<1>> owning_array(std::vector<T> values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* const data = owned->data();
  const std::size_t size = owned->size();
  nb::capsule owner(owned.get(), [](void* vector) noexcept { delete static_cast<std::vector<T>*>(vector); });
  owned.release();
  return nb::ndarray<Framework, T, nb::ndim<1>>(data, {size}, owner);
}

void bind_errors(nb::module_& module);
void bind_registry(nb::module_& module);
void bind_trial(nb::module_& module);
void bind_reducer(nb::module_& module);
void bind_sockets(nb::module_& module);

}  // namespace thinwire::python
