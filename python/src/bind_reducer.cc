#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <span>
#include <tuple>

#include "bindings.h"
#include "thinwire/errors.h"
#include "thinwire/hosts.h"
#include "thinwire/pipelining.h"
#include "thinwire/step_time.h"

namespace thinwire::python {
namespace {

using Bytes = nb::ndarray<>;

nb::dlpack::dtype dtype_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return nb::dtype<float>();
    case ElementType::kBfloat16:
      return {static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};
    case ElementType::kFloat16:
      return {static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
    case ElementType::kInt32:
      return nb::dtype<std::int32_t>();
    case ElementType::kUint32:
      return nb::dtype<std::uint32_t>();
    case ElementType::kUint8:
      return nb::dtype<std::uint8_t>();
  }
  throw Error("an element type without a name");
}

// An array over the memory that a collective speaks of: valid until the reduction is asked for the next collective.
Bytes view(nb::handle owner, std::span<std::byte> bytes, ElementType type) {
  const std::size_t size = bytes.size() / element_bytes(type);
  static std::byte nothing[4];  // an empty array has an address all the same
  return Bytes(bytes.empty() ? nothing : bytes.data(), {size}, owner, {}, dtype_of(type));
}

// A reduction and the bucket that it works on, if any, which lives as long.
class HeldReduction {
 public:
  HeldReduction(std::optional<Bucket> bucket, Reduction reduction)
      : bucket_(std::move(bucket)), reduction_(std::move(reduction)) {}

  std::optional<Collective> next() {
    if (!reduction_) return std::nullopt;
    nb::gil_scoped_release released;
    const Collective* const collective = reduction_->next();
    return collective ? std::optional(*collective) : std::nullopt;
  }

  void close() { reduction_.reset(); }

 private:
  std::optional<Bucket> bucket_;
  std::optional<Reduction> reduction_;
};

std::vector<ParameterGradient> cut(const Layout& layout, const Bucket& bucket, const std::vector<std::uint32_t>& parameters) {
  const ElementType type = gradient_type(bucket);
  std::span<std::byte> rest(static_cast<std::byte*>(bucket.data()), bucket.nbytes());
  std::vector<ParameterGradient> gradients;
  gradients.reserve(parameters.size());
  for (const std::uint32_t parameter : parameters) {
    if (parameter >= layout.parameters().size())
      throw ArgumentError("there is no parameter " + std::to_string(parameter) + "; the layout has " +
                          std::to_string(layout.parameters().size()));
    const std::size_t bytes = layout.parameters()[parameter].elements() * element_bytes(type);
    if (bytes > rest.size()) throw ArgumentError("the bucket is shorter than its parameters");
    gradients.push_back({parameter, type, rest.first(bytes)});
    rest = rest.subspan(bytes);
  }
  if (!rest.empty()) throw ArgumentError("the bucket is longer than its parameters");
  return gradients;
}

HeldReduction reduce(Reducer& reducer, Bucket bucket, const std::vector<std::uint32_t>& parameters, int lane,
                     double loss_scale) {
  const std::vector<ParameterGradient> gradients = cut(reducer.layout(), bucket, parameters);
  Reduction reduction = [&] {
    nb::gil_scoped_release released;
    return reducer.reduce(gradients, lane, loss_scale);
  }();
  return {std::move(bucket), std::move(reduction)};
}

void construct(Reducer* self, LayoutPairs layout, std::string compressor, RulePairs rules, bool small_uncompressed,
               std::uint64_t seed, int rank, int world_size, int lanes, int threads, int measure_every, bool keep_old_residuals,
               std::optional<std::tuple<double, double>> link, std::vector<int> hosts, std::vector<std::uint32_t> owners,
               bool from_owners) {
  ReducerOptions options;
  options.hosts = std::move(hosts);
  options.compressor = std::move(compressor);
  options.rules = make_rules(std::move(rules));
  options.small_uncompressed = small_uncompressed;
  options.seed = seed;
  options.rank = rank;
  options.world_size = world_size;
  options.lanes = lanes;
  options.threads = threads;
  options.keep_old_residuals = keep_old_residuals;
  options.measure_every = measure_every;
  options.owners = std::move(owners);
  options.from_owners = from_owners;
  if (link) options.link = {.bytes_per_second = std::get<0>(*link), .round_seconds = std::get<1>(*link)};
  new (self) Reducer(make_layout(std::move(layout)), std::move(options));
}

nb::object link_of(const Reducer& reducer) {
  if (!reducer.link().is_known()) return nb::none();
  return nb::make_tuple(reducer.link().bytes_per_second, reducer.link().round_seconds);
}

nb::dict counters_of(const Reducer& reducer) {
  const Counters counters = reducer.counters();
  nb::dict result;
  result["reductions"] = counters.reductions;
  result["rounds"] = counters.rounds;
  result["elements"] = counters.elements;
  result["compressed_elements"] = counters.compressed_elements;
  result["setup_bytes"] = counters.setup_bytes;
  result["payload_bytes"] = counters.payload_bytes;
  result["second_bytes"] = counters.second_bytes;
  result["traffic_bytes"] = counters.traffic_bytes;
  result["plain_traffic_bytes"] = counters.plain_traffic_bytes;
  result["within_host_bytes"] = counters.within_host_bytes;
  result["row_traffic_bytes"] = counters.row_traffic_bytes;
  result["row_elements"] = counters.row_elements;
  result["fallbacks"] = counters.fallbacks;
  result["non_finite"] = counters.non_finite;
  result["failed_steps"] = counters.failed_steps;
  result["setup_seconds"] = counters.setup_seconds;
  result["encode_seconds"] = counters.encode_seconds;
  result["wire_seconds"] = counters.wire_seconds;
  result["decode_seconds"] = counters.decode_seconds;
  result["measured_energy"] = counters.measured_energy;
  result["error_energy"] = counters.error_energy;
  return result;
}

// A worker's memory of one parameter: (name, steps, residual, memory).
using StateRow = std::tuple<std::string, std::uint64_t, nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>,
                            nb::bytes>;

nb::list state_of(const Reducer& reducer) {
  nb::list rows;
  for (ParameterState& state : reducer.state()) {
    const nb::bytes memory(state.memory.data(), state.memory.size());
    rows.append(nb::make_tuple(state.name, state.steps, owning_array<nb::numpy>(std::move(state.residual)), memory));
  }
  return rows;
}

void load_state(Reducer& reducer, const std::vector<StateRow>& rows) {
  std::vector<ParameterState> states;
  states.reserve(rows.size());
  for (const auto& [name, steps, residual, memory] : rows) {
    const auto* const bytes = static_cast<const std::byte*>(memory.data());
    states.push_back({name, steps, {residual.data(), residual.data() + residual.size()}, {bytes, bytes + memory.size()}});
  }
  reducer.load_state(states);
}

std::vector<bool> keeps_residuals_of(const Reducer& reducer) {
  std::vector<bool> keeps;
  for (std::size_t i = 0; i < reducer.layout().parameters().size(); ++i) keeps.push_back(reducer.keeps_residual(i));
  return keeps;
}

std::vector<std::tuple<std::uint64_t, std::uint64_t>> parts_of(const Reducer& reducer) {
  std::vector<std::tuple<std::uint64_t, std::uint64_t>> parts;
  for (std::size_t i = 0; i < reducer.layout().parameters().size(); ++i)
    parts.emplace_back(reducer.part(i).first, reducer.part(i).elements);
  return parts;
}

// (ready, encode, decode, rounds, bytes)
using BucketRow = std::tuple<double, double, double, double, double>;

double predict(double compute_seconds, double hidden, double sending_seconds, int lanes, const std::tuple<double, double>& link,
               const std::vector<BucketRow>& rows) {
  if (lanes < 1) throw ArgumentError("lanes = " + std::to_string(lanes) + "; allowed: 1 or more");
  const auto [bytes_per_second, round_seconds] = link;
  if (!(bytes_per_second > 0))
    throw ArgumentError("link = " + std::to_string(bytes_per_second) + " bytes a second; allowed: more than 0");
  std::vector<BucketCost> buckets;
  for (const auto& [ready, encode, decode, rounds, bytes] : rows)
    buckets.push_back({.ready_seconds = ready,
                       .encode_seconds = encode,
                       .decode_seconds = decode,
                       .rounds = static_cast<int>(rounds),
                       .bytes = bytes});
  const StepCost step = {.compute_seconds = compute_seconds, .hidden = hidden, .sending_seconds = sending_seconds, .lanes = lanes,
                         .link = {.bytes_per_second = bytes_per_second, .round_seconds = round_seconds}};
  return predict_step(step, buckets).seconds;
}

std::vector<std::string> compressors_of(const Reducer& reducer) {
  std::vector<std::string> specs;
  for (std::size_t i = 0; i < reducer.layout().parameters().size(); ++i) specs.push_back(reducer.compressor_of(i));
  return specs;
}

}  // namespace

ElementType gradient_type(const Bucket& bucket) {
  for (const ElementType type : {ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16})
    if (bucket.dtype() == dtype_of(type)) return type;
  throw ArgumentError("a bucket's elements must be float32, bfloat16 or float16");
}

void bind_reducer(nb::module_& module) {
  nb::class_<Collective>(module, "Collective", "What a communicator has to perform.")
      .def_prop_ro("kind", [](const Collective& self) { return name_of(self.kind); },
                   "\"sum\", \"max\", \"unite\", \"gather\", \"scatter\" or \"broadcast\".")
      .def_prop_ro("group", [](const Collective& self) { return name_of(self.group); }, "Of which workers: \"all\", \"host\" or \"between\".")
      .def_ro("root", &Collective::root, "Whose data all get, for \"broadcast\".")
      .def_prop_ro("data", [](nb::handle_t<Collective> self) {
        const auto& collective = nb::cast<const Collective&>(self);
        return view(self, collective.data, collective.type);
      }, "A flat array over the memory to combine; valid until the next collective is asked for.")
      .def_prop_ro("result", [](nb::handle_t<Collective> self) {
        const auto& collective = nb::cast<const Collective&>(self);
        return view(self, collective.result, collective.type);
      }, "A flat array over the memory for what \"gather\" and \"scatter\" bring; empty for the others.");

  nb::class_<HeldReduction>(module, "Reduction", "A bucket's way to its mean.")
      .def("next", &HeldReduction::next, nb::keep_alive<0, 1>(),
           "The next collective to perform; None when the bucket holds the mean, or after close(). Releases the GIL.")
      .def("close", &HeldReduction::close,
           "Ends what is unfinished, and fails its step. Not to be left to the destructor: an exception's traceback keeps this object.");

  module.def("choose_lanes",
             [](double codec_seconds, double wire_seconds, int buckets, int most) {
               return choose_lanes({.codec_seconds = codec_seconds, .wire_seconds = wire_seconds}, buckets, most);
             },
             nb::arg("codec_seconds"), nb::arg("wire_seconds"), nb::arg("buckets"), nb::arg("most"),
             "How many buckets to have on their way at once, at most `most`, by what one lane takes for all of them.");

  module.def("host_identity", &host_identity, "Equal for processes that reach each other without a network.");
  module.def("number_hosts", [](const std::vector<std::string>& identities) { return number_hosts(identities); }, nb::arg("identities"),
             "Of each worker the number of its host, from 0 on in the order of their first workers.");
  module.def("has_two_levels", [](const std::vector<int>& hosts) { return has_two_levels(hosts); }, nb::arg("hosts"),
             "Whether there are several hosts, one of which has several workers.");

  module.def("is_small", [](std::vector<std::int64_t> shape) { return is_small({"", std::move(shape)}); }, nb::arg("shape"),
             "Whether a parameter of this shape is not worth compressing, and travels as it is unless a rule says otherwise.");

  module.def("predict_step", &predict, nb::kw_only(), nb::arg("compute_seconds"), nb::arg("hidden"), nb::arg("sending_seconds"),
             nb::arg("lanes"), nb::arg("link"), nb::arg("buckets"),
             "Seconds of a step whose buckets, tuples (ready, encode, decode, rounds, bytes), travel over a link (bytes a second, "
             "seconds a round); sending_seconds: of the processor, a byte.");

  module.attr("MOST_THREADS") = kMostThreads;
  nb::class_<Reducer>(module, "Reducer", "Averages gradients over all workers; one on each.")
      .def("__init__", &construct, nb::arg("layout"), nb::arg("compressor"), nb::arg("rules"),
           nb::arg("small_uncompressed"), nb::arg("seed"), nb::arg("rank"), nb::arg("world_size"), nb::arg("lanes"),
           nb::arg("threads"), nb::arg("measure_every"), nb::arg("keep_old_residuals") = false,
           nb::arg("link") = nb::none(), nb::arg("hosts") = std::vector<int>(), nb::arg("owners") = std::vector<std::uint32_t>(), nb::arg("from_owners") = false)
      .def("reduce", &reduce, nb::arg("bucket"), nb::arg("parameters"), nb::arg("lane"), nb::arg("loss_scale"),
           nb::keep_alive<0, 1>(),
           "Starts to average a flat bucket that holds whole parameters, given by their indices, one behind the other.")
      .def("begin_step", &Reducer::begin_step, "What is reduced until end_step() succeeds or fails as one.")
      .def("end_step", &Reducer::end_step, nb::call_guard<nb::gil_scoped_release>(),
           "False if the step has failed; buckets must stay where they are until then.")
      .def("fail_step", &Reducer::fail_step, "What belongs to the step and travels otherwise is not finite, as all workers know.")
      .def("measure_link", [](Reducer& self, int lane) { return HeldReduction(std::nullopt, self.measure_link(lane)); },
           nb::arg("lane"), nb::keep_alive<0, 1>(),
           "A reduction of nothing that finds out what the link can do; by all workers, before anything else is reduced.")
      .def_prop_ro("link", &link_of, "(bytes a second, seconds a round), or None where it was not measured.")
      .def_prop_ro("chooses_by_link", &Reducer::chooses_by_link, "Whether measure_link() changes anything.")
      .def_prop_ro("fingerprint", &Reducer::fingerprint)
      .def_prop_ro("description", &Reducer::description)
      .def_prop_ro("compressors", &compressors_of, "The canonical spec of every parameter.")
      .def_prop_ro("keeps_residuals", &keeps_residuals_of, "Whether error feedback is on, of every parameter.")
      .def_prop_ro("hosts", [](const Reducer& self) { return std::vector<int>(self.hosts().begin(), self.hosts().end()); },
                   "Of each worker the number of its host; empty where none is shared.")
      .def_prop_ro("parts", &parts_of, "(first element, elements) of what this worker compresses, of every parameter.")
      .def("counters", &counters_of)
      .def("state", &state_of, "A tuple (name, steps, residual, memory) for each parameter.")
      .def("load_state", &load_state, nb::arg("rows"));
}

}  // namespace thinwire::python
