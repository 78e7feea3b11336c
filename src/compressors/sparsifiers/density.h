// How many entries of a chunk sparsifiers send.
#pragma once

#include <cmath>
#include <cstddef>

#include "compressors/shared/row.h"

namespace thinwire {

// k = ceil(density n), by a product in double precision, which is the same on every worker.
inline std::size_t kept_entries(double density, std::size_t elements) {
  return static_cast<std::size_t>(std::ceil(density * static_cast<double>(elements)));
}

inline SpecParameter density_parameter(const char* default_value = "0.01") {
  return real("density", default_value, 0.001, 1,
              "share of each chunk's entries that is sent, rounded up: a chunk is up to 32768 entries of a parameter");
}

}  // namespace thinwire
