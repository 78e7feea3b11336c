// What a worker sends of a gradient, by formulas written down apart from the compressors: what a row reports of itself is no test.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace thinwire::testing {

struct ExpectedBytes {
  std::size_t payload = 0;
  std::size_t second = 0;  // of these, of means that it has averaged
};

// In the first step, of the first of two workers, whose gradients of so many elements hold no zeros. None where there is no formula, as the
// length depends on the values: then the row's claim is the bound.
std::optional<ExpectedBytes> expected_bytes(const std::string& spec, std::size_t elements);

}  // namespace thinwire::testing
