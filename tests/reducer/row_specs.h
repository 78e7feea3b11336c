// Specs of a row, as tests of all rows begin them.
#pragma once

#include <string>

#include "compressors/registry.h"

namespace thinwire::testing {

// With what makes a few steps and short parameters show what the row does. Settings may be put behind it: it ends in ':' or ','.
inline std::string beginning_of(const Row& row) {
  return row.info.name + ":" + row.trials.brief + (row.trials.brief.empty() ? "" : ",");
}

// What begins as above, at its end.
inline std::string finished(std::string spec) {
  spec.pop_back();
  return spec;
}

inline std::string further_spec(const Row& row, const std::string& settings) { return row.info.name + ":" + settings; }

}  // namespace thinwire::testing
