// What peers send of gradiveq: bases and who has them, coefficients, norms, words, marks. Whatever arrives, a reduction ends with
// PayloadError, with a bucket that is said not to be finite (both leave the memory as it was), or with finite means; and its memory can
// be saved and loaded.
#include <map>

#include "fuzz/spoilt_group.h"

namespace thinwire::fuzz {
namespace {

constexpr const char* kCycle = "learn=1,lag=0,use=3,smallest=16,slice=9,axis=kernel,";
constexpr const char* kSpecs[] = {"dims=2", "dims=2,feedback=on", "rate=3", "rate=3,feedback=on", "dims=2/qsgd:bits=4,reduce=gather",
                                  "refresh=every,dims=2", "refresh=every,dims=2,feedback=on",
                                  "refresh=every,dims=2,feedback=on/qsgd:bits=4,reduce=sum",
                                  "ratio=1/casq:rate=1,reduce=scatter"};
constexpr const char* kContents[] = {"normal", "zeros", "one_worker_zero", "outlier"};

const Layout& layout() {
  static const Layout instance({{"conv", {8, 4, 3, 3}}, {"other", {6, 5, 3, 3}}, {"vector", {7}}, {"empty", {0, 3}}});
  return instance;
}

UsedGroup& used_group(const std::string& spec) {
  static std::map<std::string, UsedGroup> made;
  if (!made.contains(spec)) made.emplace(spec, UsedGroup({layout(), {.compressor = spec}, 3, 1, true}, "normal"));
  return made.at(spec);
}

}  // namespace
}  // namespace thinwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  fuzz::Input input(data, size);
  const std::string spec = fuzz::kSpecs[input.choose(std::size(fuzz::kSpecs))];
  fuzz::SpoiltGroup& group = fuzz::used_group("gradiveq:" + (fuzz::kCycle + spec)).begin_at(1);
  for (std::size_t steps = 1 + input.choose(4); steps > 0; --steps)
    fuzz::step_checked(group, fuzz::kContents[input.choose(std::size(fuzz::kContents))], input);
  return 0;
}
