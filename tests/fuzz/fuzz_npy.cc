// .npy files: refused with Error, or as many values as the shape says and the file holds.
#include <sstream>

#include "fuzz/fuzz_input.h"
#include "thinwire/errors.h"
#include "tool/npy.h"

using thinwire::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::istringstream stream(std::string(data, data + size));
  try {
    const thinwire::tool::NpyArray array = thinwire::tool::read_npy(stream, size, "input");
    std::uint64_t elements = 1;
    for (const std::uint64_t dimension : array.shape) elements *= dimension;
    require(array.values.size() == elements, "an array has the elements of its shape");
    require(array.values.size() * sizeof(float) < size, "an array's values were in the file");
  } catch (const thinwire::Error&) {
  }
  return 0;
}
