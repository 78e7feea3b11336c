// Spec strings: refused with ArgumentError, or the text that they stand for stands for the same again.
#include "fuzz/fuzz_input.h"
#include "thinwire/errors.h"
#include "thinwire/registry.h"
#include "thinwire/spec.h"

using thinwire::ArgumentError;
using thinwire::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  bool parsed = false;
  try {
    const std::string again = thinwire::Spec::parse(text).text();
    parsed = true;
    require(again == text, "a spec's text is what was parsed");
  } catch (const ArgumentError&) {
    require(!parsed, "a spec's text can be parsed");
  }
  try {
    const std::string canonical = thinwire::canonical_spec(text);
    require(parsed, "what names a compressor is a spec");
    require(thinwire::canonical_spec(canonical) == canonical, "a canonical spec stays as it is");
  } catch (const ArgumentError&) {
  }
  return 0;
}
