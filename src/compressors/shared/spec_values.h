// A spec stage's values, checked against what its compressor declares.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/registry.h"
#include "thinwire/spec.h"

namespace thinwire {

// One value for every declared parameter, in the declared order.
class SpecValues {
 public:
  // Throws ArgumentError for an unknown key or a value that is not allowed.
  SpecValues(const SpecStage& stage, const CompressorInfo& info);

  // The value of a declared parameter.
  std::int64_t integer(std::string_view name) const;
  double real(std::string_view name) const;
  const std::string& choice(std::string_view name) const;
  bool has(std::string_view name) const;

  // The stage with every value written out.
  SpecStage canonical() const { return {compressor_, values_}; }

 private:
  std::string compressor_;
  std::vector<std::pair<std::string, std::string>> values_;
};

}  // namespace thinwire
