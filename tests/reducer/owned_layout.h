// Parameters that have owners, and the specs that serve these: the ground of tests of reduce-scatter and all-gather.
#pragma once

#include <cctype>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "compressors/registry.h"
#include "reducer/row_specs.h"
#include "reducer/workers.h"
#include "sanitized.h"

namespace thinwire::testing {

// The sanitizers are slow, and look for what goes wrong alike whatever the numbers are.
inline const std::vector<int> kTriedCounts = kSanitized ? std::vector{2, 3} : std::vector{1, 2, 3, 4};
inline const std::vector<std::int64_t> kMatrix = kSanitized ? std::vector<std::int64_t>{35, 250} : std::vector<std::int64_t>{75, 450};

// Parts of two parameters for each worker, as they lie in what FSDP hands over, and one of them empty.
inline Layout layout_of(int workers) {
  std::vector<Parameter> parameters;
  for (int owner = 0; owner < workers; ++owner) {
    const std::string suffix = "@" + std::to_string(owner);
    parameters.push_back({"matrix" + suffix, kMatrix});
    parameters.push_back({"bias" + suffix, {77}});
    parameters.push_back({"empty" + suffix, {0, 3}});
  }
  return Layout(parameters);
}

inline std::vector<std::uint32_t> owners_of(int workers) {
  std::vector<std::uint32_t> owners;
  for (int owner = 0; owner < workers; ++owner) owners.insert(owners.end(), 3, static_cast<std::uint32_t>(owner));
  return owners;
}

inline std::vector<std::string> specs_that_serve() {
  std::vector<std::string> specs;
  for (const Row& row : rows())
    for (const char* settings : {"", "feedback=on", "feedback=off"}) {
      const std::string spec = *settings == 0 ? finished(beginning_of(row)) : beginning_of(row) + settings;
      if (is_allowed(spec) && make_compressor(spec).compressor->serves_owners()) specs.push_back(spec);
    }
  return specs;
}

// Calls body(owner, begin, end) for the owners' parts.
template <class Body>
void for_each_owner(const Workers& workers, const Body& body) {
  const std::size_t part = workers.layout().elements() / static_cast<std::size_t>(workers.count());
  for (std::size_t owner = 0; owner < static_cast<std::size_t>(workers.count()); ++owner) body(owner, owner * part, (owner + 1) * part);
}

inline std::string name_of_spec(const ::testing::TestParamInfo<std::string>& tested) {
  std::string name = tested.param + "_" + std::to_string(tested.index);
  for (char& letter : name)
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  return name;
}

}  // namespace thinwire::testing
