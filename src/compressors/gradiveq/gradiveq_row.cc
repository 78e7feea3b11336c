#include <cmath>
#include <optional>

#include "compressors/gradiveq/gradiveq.h"
#include "compressors/gradiveq/gradiveq_follow.h"
#include "compressors/shared/row.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

std::optional<Axis> axis_of(const std::string& text) {
  if (text == "filter") return Axis::kFilter;
  if (text == "flat") return Axis::kFlat;
  if (text == "out") return Axis::kOut;
  if (text == "in") return Axis::kIn;
  if (text == "kernel") return Axis::kKernel;
  if (text == "square") return Axis::kSquare;
  return std::nullopt;
}

double rate_of(const SpecValues& values, bool has_stage) {
  const double rate = values.real("rate");
  if (rate > 0 && rate < 0.125)
    throw ArgumentError("compressor 'gradiveq': rate=" + values.choice("rate") +
                        " is not allowed; it takes 0 or a number from 0.125 to 16");
  if (rate > 0 && has_stage)
    throw ArgumentError("compressor 'gradiveq': with rate= it rounds coefficients itself, and takes no further stage");
  return rate;
}

// All components of whole filters are more numbers than a cycle saves.
Axis usual_axis(const SpecValues& values) {
  const bool keeps_all = values.real("ratio") == 1 && values.integer("dims") == 0 && values.real("energy") == 0 && values.real("rate") == 0;
  return keeps_all ? Axis::kIn : Axis::kFilter;
}

MadeCompressor make_cycling(const SpecValues& values, MadeCompressor next) {
  GradiveqOptions options;
  options.schedule = {static_cast<std::uint64_t>(values.integer("learn")), static_cast<std::uint64_t>(values.integer("lag")),
                      static_cast<std::uint64_t>(values.integer("use"))};
  options.axis = values.choice("axis") == "usual" ? usual_axis(values) : axis_of(values.choice("axis"));
  if (values.integer("slice") > 0) options.slice = static_cast<std::size_t>(values.integer("slice"));
  options.size = {.rate = rate_of(values, next != nullptr), .dims = static_cast<std::size_t>(values.integer("dims")),
                  .energy = values.real("energy"), .ratio = values.real("ratio"), .uses = values.real("use"), .sent = next ? 0.5 : 1,
                  .is_ordered = next && next->goes_by_neighbours()};
  options.smallest = static_cast<std::uint64_t>(values.integer("smallest"));
  return std::make_unique<Gradiveq>(options, values.choice("feedback") == "flush", std::move(next));
}

MadeCompressor make_following(const SpecValues& values, MadeCompressor next) {
  if (values.real("rate") > 0 || values.real("energy") > 0)
    throw ArgumentError("compressor 'gradiveq': with refresh=every there are as many components as dims or ratio say; it takes no "
                        "rate= and no energy=. A stage can round its coefficients: gradiveq:refresh=every/bf16");
  if (next && next->make_memory({"any", {1}}, kChunkElements))
    throw ArgumentError("compressor 'gradiveq': with refresh=every components are others in every step, and what carries their coefficients, "
                        "remembering something of every parameter, would remember others'; such a stage may follow refresh=cycle");
  FollowOptions options;
  options.axis = axis_of(values.choice("axis")).value_or(options.axis);
  if (values.integer("slice") > 0) options.slice = static_cast<std::size_t>(values.integer("slice"));
  options.probes = static_cast<std::size_t>(values.integer("probes"));
  options.dims = static_cast<std::size_t>(values.integer("dims"));
  options.ratio = values.real("ratio");
  options.smallest = static_cast<std::uint64_t>(values.integer("smallest"));
  return std::make_unique<GradiveqFollow>(options, std::move(next));
}

}  // namespace

Row gradiveq_row() {
  SpecParameter feedback_or_flush = feedback("off");
  feedback_or_flush.choices = {"off", "on", "flush"};
  feedback_or_flush.help = "off: what the components do not hold is lost; on: it is kept and sent in the next learning step, or, "
                           "with refresh=every, as probes find it; flush: in parts in all of them, for cycles that learn about "
                           "as long as they use";
  Row row;
  row.info = {.name = "gradiveq",
              .family = Family::kProjections,
              .description = "GradiVeQ, principal components: of slices, which are projected on those that all workers share",
              .bits = "32 / ratio",
              .wire_id = Gradiveq::kWireId,
              .aggregation = Aggregation::kLinear,
              .reference = "Yu et al., NeurIPS 2018, arXiv 1811.03617"};
  row.sends = Sends::kPassingElements;
  row.info.sizes = {"refresh=every,ratio"};
  row.info.learns = true;
  row.info.parameters = {
      real("ratio", "16", 1, 10000, "entries of a slice to each of its components"),
      whole_number("dims", "0", 0, 4096, "components of a slice; 0: as ratio or energy say"),
      real("energy", "0", 0, 1, "as many components as hold this share of the variance; 0: as ratio says"),
      real("rate", "0", 0, 16,
           "bits an entry in compressed steps, guard bits and norms included: coefficients are rounded, strong "
           "components to more bits; 0: they are floats, as many as dims, energy or ratio say"),
      whole_number("slice", "0", 0, 4096,
                   "most entries of a slice; 0: 576, or 4096 with refresh=every, which needs no covariance"),
      choice("axis", {"usual", "auto", "filter", "flat", "out", "in", "kernel", "square"},
             "along what a slice lies: whole filters, memory, output or input channels, kernels, or input "
             "channels and part of the kernel, so that slices are as many as their entries; auto: filter, in or "
             "kernel, for each parameter what keeps most at equal cost; usual: filter, in with ratio=1, square with refresh=every"),
      choice("refresh", {"cycle", "every"},
             "every: components follow the gradient in every step, with no learning phase"),
      whole_number("probes", "0", 0, 4096,
                   "with refresh=every, directions of a step's own beside the components; 0: as many as dims, or "
                   "else as ratio allows"),
      whole_number("learn", "100", 1, 1e9, "steps of a cycle that are uncompressed, to learn from"),
      whole_number("lag", "2", 0, 1e9,
                   "uncompressed steps more, in which components are found in the background"),
      whole_number("use", "400", 1, 1e9, "steps of a cycle that are compressed"),
      whole_number("smallest", "4096", 0, 1e9, "parameters of fewer elements travel uncompressed"),
      feedback_or_flush};
  row.make = [](const SpecValues& values, MadeCompressor next) {
    return values.choice("refresh") == "every" ? make_following(values, std::move(next)) : make_cycling(values, std::move(next));
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    claims.remembers = true;  // components of earlier steps
    claims.rounding = 5e-5;   // of products of as many terms as a slice has entries, one with what is kept and one with the mean
    // A coefficient may be so many times as large as the entries of its slice, and what is lost of it comes back in all of them.
    const auto slice = values.integer("slice") > 0 ? values.integer("slice") : 576;
    if (values.choice("refresh") == "cycle") claims.spread = std::sqrt(static_cast<double>(slice));
    return claims;
  };
  row.trials.brief = "learn=1,lag=0,slice=48,ratio=4,smallest=16";
  row.trials.further = {
      "learn=1,lag=0,use=4,slice=48,smallest=16,ratio=1,feedback=on/casq:rate=1.5,reduce=scatter",
      "learn=1,lag=0,use=2,slice=48,smallest=16,ratio=2/casq:rate=2,feedback=off",
      "learn=1,lag=0,slice=48,smallest=16,rate=2",
      "learn=1,lag=0,slice=48,smallest=16,rate=1.5,feedback=on",
      "learn=1,lag=0,slice=48,smallest=16,rate=6,axis=auto,feedback=flush",
      "learn=1,lag=0,use=3,slice=48,smallest=16,rate=2,feedback=on",
      "refresh=every,slice=48,smallest=16,feedback=on/qsgd:bits=4,reduce=sum",
      "refresh=every,slice=48,smallest=16/bf16"};
  return row;
}

}  // namespace thinwire
