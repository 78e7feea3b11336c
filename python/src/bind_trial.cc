#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cmath>

#include "bindings.h"
#include "thinwire/errors.h"
#include "thinwire/trial.h"

namespace thinwire::python {
namespace {

using Gradient = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

// As in the tool's JSON: what is undefined or not finite is None.
nb::object number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? nb::object(nb::float_(*value)) : nb::object(nb::none());
}

nb::dict figures_of(const TrialReport& report) {
  const TrialFigures& total = report.total;
  nb::dict figures;
  figures["compressor"] = report.compressor;
  figures["workers"] = report.workers;
  figures["elements"] = report.elements;
  figures["steps"] = report.steps;
  figures["rounds"] = total.rounds;
  figures["setup_bytes"] = total.setup_bytes;
  figures["payload_bytes"] = total.payload_bytes;
  figures["second_bytes"] = total.second_bytes;
  figures["traffic_bytes"] = total.traffic_bytes;
  figures["bits_per_element"] = number(total.bits_per_element);
  figures["nmse_mean"] = number(total.nmse_mean);
  figures["nmse_worker"] = number(total.nmse_worker);
  figures["seconds"] = total.seconds;
  return figures;
}

std::vector<float> one_behind_the_other(const std::vector<Gradient>& gradients, std::uint64_t elements) {
  std::vector<float> all;
  all.reserve(gradients.size() * elements);
  for (const Gradient& gradient : gradients) {
    if (gradient.size() != elements)
      throw ArgumentError("a gradient has " + std::to_string(gradient.size()) + " elements, and the layout has " +
                          std::to_string(elements));
    all.insert(all.end(), gradient.data(), gradient.data() + elements);
  }
  return all;
}

nb::tuple exchange(const std::vector<Gradient>& gradients, LayoutPairs layout_pairs, std::string spec, RulePairs rules,
                   std::uint64_t seed, int threads) {
  if (gradients.empty()) throw ArgumentError("no gradients: one array for each worker is needed");
  const Layout layout = make_layout(std::move(layout_pairs));
  const std::vector<float> all = one_behind_the_other(gradients, layout.elements());
  const TrialOptions options{std::move(spec), make_rules(std::move(rules)), seed, threads};
  TrialReport report = [&] {
    nb::gil_scoped_release released;
    return run_trial(layout, all, static_cast<int>(gradients.size()), 1, options);
  }();
  return nb::make_tuple(owning_array<nb::numpy>(std::move(report.mean)), figures_of(report));
}

}  // namespace

void bind_trial(nb::module_& module) {
  module.def("exchange", &exchange, nb::arg("gradients"), nb::arg("layout"), nb::arg("spec"), nb::arg("rules"),
             nb::arg("seed"), nb::arg("threads"),
             "One exchange between workers that are threads of this process: (mean as a flat NumPy array, figures).");
}

}  // namespace thinwire::python
