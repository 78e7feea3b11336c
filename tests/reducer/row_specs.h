// Specs of a row, as tests of all rows begin them.
#pragma once

#include <string>

#include "compressors/registry.h"
#include "thinwire/errors.h"

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

// Whether its values go together, and its stages may follow one another.
inline bool is_allowed(const std::string& spec) {
  try {
    canonical_spec(spec);
    return true;
  } catch (const ArgumentError&) {
    return false;
  }
}

inline std::string further_spec(const Row& row, const std::string& settings) { return row.info.name + ":" + settings; }

}  // namespace thinwire::testing
