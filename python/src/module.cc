#include "bindings.h"
#include "thinwire/version.h"

namespace thinwire::python {

Layout make_layout(LayoutPairs pairs) {
  std::vector<Parameter> parameters;
  parameters.reserve(pairs.size());
  for (auto& [name, shape] : pairs) parameters.push_back({std::move(name), std::move(shape)});
  return Layout(std::move(parameters));
}

std::vector<Rule> make_rules(RulePairs pairs) {
  std::vector<Rule> rules;
  rules.reserve(pairs.size());
  for (auto& [pattern, spec] : pairs) rules.push_back({std::move(pattern), std::move(spec)});
  return rules;
}

}  // namespace thinwire::python

NB_MODULE(_native, module) {
  using namespace thinwire::python;
  // Objects that live when Python is interrupted or a launcher leaves without cleaning up belong to nobody's mistake.
  nanobind::set_leak_warnings(false);
  module.def("version", &thinwire::version, "The library's version, \"major.minor.patch\".");
  bind_errors(module);
  bind_registry(module);
  bind_trial(module);
  bind_reducer(module);
  bind_sockets(module);
}
