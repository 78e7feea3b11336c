// Rules as JSON: refused with ArgumentError, or patterns that differ.
#include <set>

#include "fuzz/fuzz_input.h"
#include "thinwire/errors.h"
#include "tool/rules_json.h"

using thinwire::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // What does not begin like an object is the path of a file, and no fuzzer chooses those.
  std::string text = "{";
  text.append(data, data + size);
  try {
    std::set<std::string> patterns;
    for (const thinwire::Rule& rule : thinwire::tool::parse_rules(text))
      require(patterns.insert(rule.pattern).second, "no pattern occurs twice");
  } catch (const thinwire::ArgumentError&) {
  }
  return 0;
}
