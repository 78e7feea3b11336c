// Layouts as JSON: refused with Error, or parameters that tile exactly the elements there are.
#include "fuzz/fuzz_input.h"
#include "thinwire/errors.h"
#include "tool/layout_json.h"

using thinwire::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  thinwire::fuzz::Input input(data, size);
  const auto elements = input.number<std::uint8_t>();
  try {
    const thinwire::Layout layout = thinwire::tool::parse_layout(input.text(), elements, "input");
    require(layout.elements() == elements, "a layout has the elements that were asked for");
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
      require(layout.offset(i) == end, "parameters lie one behind the other");
      end += layout.parameters()[i].elements();
    }
    require(end == elements, "parameters hold all elements");
  } catch (const thinwire::Error&) {
  }
  return 0;
}
