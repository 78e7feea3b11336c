// Saved memories: refused with StateError, and then nothing has changed, or loaded as they are and good for further steps.
#include "fuzz/spoilt_group.h"

namespace thinwire::fuzz {
namespace {

SpoiltGroup& group() {
  // Of gradiveq's parameters the victim is the owner; after two steps it learns one, has found one, and uses one.
  static const Layout layout({{"rate", {30, 20}}, {"casq", {20, 15}}, {"plain", {4}}, {"halves", {70}}, {"scattered", {33}}, {"learnt", {6, 5, 3, 3}},
                              {"projecting", {6, 5, 3, 3}}, {"coded_found", {6, 5, 3, 3}}, {"coded", {6, 5, 3, 3}}, {"followed", {6, 5, 3, 3}},
                              {"carried", {6, 5, 3, 3}}});
  const std::string gradiveq = "gradiveq:smallest=16,slice=9,axis=kernel,";
  static SpoiltGroup instance(
      layout,
      {.compressor = "casq:bits=2",
       .rules = {{"rate", "casq:rate=1"},
                 {"plain", "none"},
                 {"halves", "bf16:feedback=on"},
                 {"scattered", "casq:bits=1,reduce=scatter"},
                 {"learnt", gradiveq + "dims=2,learn=9"},
                 {"projecting", gradiveq + "dims=2,learn=1,lag=5"},
                 {"coded_found", gradiveq + "rate=3,learn=1,lag=5,feedback=on"},
                 {"coded", gradiveq + "rate=3,learn=1,lag=0,feedback=on"},
                 {"followed", gradiveq + "refresh=every,dims=1"},
                 {"carried", gradiveq + "ratio=1,learn=1,lag=0/casq:rate=1"}}},
      2, 0);
  return instance;
}

Outcome honest_step() {
  Input honest(nullptr, 0);
  return group().step("laplace", honest);
}

template <class T>
void resize(std::vector<T>& values, Input& input) {
  const std::size_t change = input.number<std::uint8_t>();
  if (change >= 128) values.resize(change - 128);
  else values.resize(values.size() - std::min(values.size(), change));
}

void spoil(ParameterState& state, Input& input) {
  state.steps += input.number<std::uint64_t>();
  state.name.resize(state.name.size() - input.choose(2));
  resize(state.residual, input);
  resize(state.memory, input);
  input.spoil(std::as_writable_bytes(std::span(state.residual)));
  input.spoil(state.memory);
}

void load(Input& input) {
  static const auto good = (honest_step(), honest_step(), group().states());
  group().load(good);
  Reducer& reducer = group().victim();
  auto state = good[0];
  state.resize(state.size() - input.choose(2));
  for (ParameterState& parameter : state) spoil(parameter, input);
  try {
    reducer.load_state(state);
  } catch (const StateError&) {
    return require(same(reducer.state(), good[0]), "a refused state changes nothing");
  }
  require(same(reducer.state(), state), "a state is loaded as it is");
  honest_step();
  reducer.load_state(reducer.state());
}

}  // namespace
}  // namespace thinwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  thinwire::fuzz::Input input(data, size);
  thinwire::fuzz::load(input);
  return 0;
}
