// Messages of compressors of rows: whatever peers send, a reduction ends with PayloadError, with a bucket that is said not to be
// finite (both leave the memory as it was), or with some means; and its memory can be saved and loaded. Rows are raw floats, so
// where nobody needs to know, what is not finite just stays in the mean.
#include <map>

#include "fuzz/spoilt_group.h"

namespace thinwire::fuzz {
namespace {

constexpr const char* kSpecs[] = {"s2:mode=exact", "s2:mode=gather", "s2:mode=split", "s2:mode=peel", "s2:mode=peel,feedback=on",
                                  "s2:mode=sketch", "s2:mode=exact/casq:bits=2", "s2:mode=exact/casq:rate=1", "s2:mode=split,block=5", "coordinates",
                                  "coordinates:block=3", "sparcml", "omnireduce:block=7"};
constexpr const char* kContents[] = {"sparse", "zeros", "one_worker_zero", "laplace"};

const Layout& layout() {
  static const Layout instance({{"matrix", {40, 5}}, {"vector", {70}}, {"empty", {0, 3}}, {"row", {1, 33}}});
  return instance;
}

UsedGroup& used_group(const std::string& spec) {
  static std::map<std::string, UsedGroup> made;
  if (!made.contains(spec)) made.emplace(spec, UsedGroup({layout(), {.compressor = spec}, 3, 1, true}, "sparse"));
  return made.at(spec);
}

}  // namespace
}  // namespace thinwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  fuzz::Input input(data, size);
  fuzz::SpoiltGroup& group = fuzz::used_group(fuzz::kSpecs[input.choose(std::size(fuzz::kSpecs))]).begin_at(1);
  for (std::size_t steps = 1 + input.choose(3); steps > 0; --steps)
    fuzz::step_checked(group, fuzz::kContents[input.choose(std::size(fuzz::kContents))], input, true);
  return 0;
}
