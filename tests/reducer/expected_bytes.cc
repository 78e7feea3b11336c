#include "reducer/expected_bytes.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "thinwire/registry.h"
#include "thinwire/spec.h"

namespace thinwire::testing {
namespace {

constexpr std::size_t kChunk = 32768;

// The first stage's values, of which all are written out.
class Settings {
 public:
  explicit Settings(const Spec& spec)
      : values_(spec.stages.front().values.begin(), spec.stages.front().values.end()), has_stage_(spec.stages.size() > 1) {}

  bool has_stage() const { return has_stage_; }

  bool has(const std::string& name) const { return values_.contains(name); }
  const std::string& text(const std::string& name) const { return values_.at(name); }
  std::size_t whole(const std::string& name) const { return std::stoul(text(name)); }
  double real(const std::string& name) const { return std::stod(text(name)); }
  bool has_feedback() const { return text("feedback") == "on" || text("feedback") == "flush"; }

 private:
  std::map<std::string, std::string> values_;
  bool has_stage_;
};

std::size_t chunks_of(std::size_t elements, std::size_t chunk = kChunk) { return (elements + chunk - 1) / chunk; }

// A message of codes: a header of 12 bytes, a bit for each chunk, and code(elements) for each of every `owners`-th chunk from `owner` on.
template <class Code>
std::size_t message_bytes(std::size_t elements, std::size_t owner, std::size_t owners, const Code& code) {
  std::size_t chunks = 0, codes = 0;
  for (std::size_t first = owner * kChunk; first < elements; first += owners * kChunk, ++chunks)
    codes += code(std::min(kChunk, elements - first));
  return 12 + (chunks + 7) / 8 + codes;
}

// By the common parameter `reduce`: everything to everybody, or shards, of which worker 0 owns the longer one, and its mean.
template <class Code>
ExpectedBytes coded(const std::string& reduce, std::size_t elements, const Code& code) {
  if (reduce != "scatter") return {message_bytes(elements, 0, 1, code), 0};
  const std::size_t shard = message_bytes(elements, 0, 2, code);
  return {2 * shard, shard};
}

ExpectedBytes halves(const Settings& settings, std::size_t elements) {
  return {2 * (elements + (settings.has_feedback() ? 1 + chunks_of(elements) : 0))};
}

// With a budget, bits are the parameters' own (casq_buckets_test.cc); with a rate, the values'.
std::optional<ExpectedBytes> casq(const Settings& settings, std::size_t elements) {
  if (settings.real("budget") > 0 || settings.real("rate") > 0) return std::nullopt;
  const std::size_t bits = settings.whole("bits"), clusters = std::size_t{1} << bits;
  const std::size_t entry = settings.text("precision") == "bf16" ? 2 : 4;
  return coded(settings.text("reduce"), elements, [&](std::size_t own) {
    const auto buckets = static_cast<std::size_t>(settings.real("table") * static_cast<double>(own));
    std::size_t code = entry * (clusters + buckets) + (own * bits + 7) / 8;
    if (buckets > 0) code += 2 * clusters;
    if (settings.text("scope") == "block") code += 2 * ((own + 511) / 512);
    return code;
  });
}

// What two workers' levels take as fields of words, with the shared norms: Levels tell how many there are of both in a chunk.
struct Levels {
  std::size_t norms, entries;
};
template <class LevelsOf>
std::size_t summed_bytes(std::size_t elements, const Settings& settings, const LevelsOf& levels_of) {
  std::size_t bytes = 4, width = 1;  // whether all is finite
  while ((std::size_t{1} << width) <= 2 * 2 * ((std::size_t{1} << (settings.whole("bits") - 1)) - 1)) ++width;
  for (std::size_t first = 0; first < elements; first += kChunk) {
    const Levels levels = levels_of(std::min(kChunk, elements - first));
    const std::size_t fields = 32 / width;
    bytes += 4 * levels.norms + 4 * ((levels.entries + fields - 1) / fields) + (settings.has_feedback() ? 4 : 0);
  }
  return bytes;
}

// A norm for each power of two that a chunk's length is the sum of, from 64 on; what is below that is another 64.
ExpectedBytes thc(const Settings& settings, std::size_t elements) {
  return {summed_bytes(elements, settings, [](std::size_t own) {
    Levels levels{own % 64 == 0 ? 0U : 1U, (own + 63) / 64 * 64};
    for (std::size_t blocks = own / 64; blocks > 0; blocks &= blocks - 1) ++levels.norms;
    return levels;
  })};
}

// With buckets of 512. Between two workers gathering sends less than summing.
ExpectedBytes qsgd(const Settings& settings, std::size_t elements) {
  const std::size_t bits = settings.whole("bits");
  if (settings.text("reduce") == "sum") {
    return {summed_bytes(elements, settings, [](std::size_t own) { return Levels{(own + 511) / 512, own}; })};
  }
  return coded(settings.text("reduce"), elements, [&](std::size_t own) { return 4 * ((own + 511) / 512) + (own * bits + 7) / 8; });
}

// A learning step, with slices of 48; compressing ones are in gradiveq_test.cc. With feedback a stage carries that, too.
std::optional<ExpectedBytes> gradiveq(const Settings& settings, std::size_t elements) {
  if (settings.has_stage() && settings.has_feedback() && settings.text("refresh") == "cycle") return std::nullopt;
  const std::size_t head = settings.has_feedback() ? 1 + chunks_of(elements, 131072 / 48 * 48) : 0;
  return ExpectedBytes{4 * (elements + head)};
}

std::size_t kept(const Settings& settings, std::size_t elements) {
  const bool is_warming_up = settings.has("warmup") && settings.whole("warmup") > 0;
  const double density = std::max(settings.real("density"), is_warming_up ? 0.25 : 0);
  return static_cast<std::size_t>(std::ceil(density * static_cast<double>(elements)));
}

// Of each place the lower bits, as many as n/k has, and the upper ones as the zeros before it in a string of ones.
std::size_t place_bytes(std::size_t k, std::size_t n) {
  std::size_t lower = 0;
  while ((k << (lower + 1)) <= n) ++lower;
  return (k * lower + 7) / 8 + (k + (n - 1) / (std::size_t{1} << lower) + 7) / 8;
}

ExpectedBytes topk(const Settings& settings, std::size_t elements) {
  return coded(settings.text("reduce"), elements, [&](std::size_t own) {
    const std::size_t k = kept(settings, own);
    return (settings.has("values") && settings.text("values") == "bf16" ? 2 : 4) * k + place_bytes(k, own);
  });
}

// The chunk's unit, 2^bits levels, and their numbers.
ExpectedBytes fitted_levels(const Settings& settings, std::size_t elements) {
  const std::size_t bits = settings.whole("bits");
  return coded(settings.text("reduce"), elements, [&](std::size_t own) { return 4 + (std::size_t{4} << bits) + (own * bits + 7) / 8; });
}

// Of (n choose k), as a product of ratios, whose error is too little to matter.
std::size_t bits_of_combinations(std::size_t n, std::size_t k) {
  long double count = 1;
  for (std::size_t i = 1; i <= k; ++i) count = count * static_cast<long double>(n - k + i) / static_cast<long double>(i);
  return static_cast<std::size_t>(std::floor(std::log2(count))) + 1;
}

// As mucsc, of some entries, and their places.
ExpectedBytes bmucsc(const Settings& settings, std::size_t elements) {
  const std::size_t bits = settings.whole("bits");
  return coded(settings.text("reduce"), elements, [&](std::size_t own) {
    const std::size_t k = kept(settings, own);
    return 4 + (std::size_t{4} << bits) + (k * bits + 7) / 8 + place_bytes(k, own);
  });
}

// Of runs of 4,096 entries: two magnitudes, six bits for each of a 64th of the entries, and the number of their places' upper parts.
ExpectedBytes sparseloco(const Settings& settings, std::size_t elements) {
  return coded(settings.text("reduce"), elements, [&](std::size_t own) {
    std::size_t bits = 0;
    for (std::size_t first = 0; first < own; first += 4096) {
      const std::size_t run = std::min<std::size_t>(4096, own - first), k = (run + 63) / 64;
      bits += 32 + 6 * k + bits_of_combinations(k + (run - 1) / 16, k);
    }
    return (bits + 7) / 8;
  });
}

ExpectedBytes randomk(const Settings& settings, std::size_t elements) {
  std::size_t numbers = 1 + (settings.has_feedback() ? chunks_of(elements) : 0);
  for (std::size_t first = 0; first < elements; first += kChunk) numbers += kept(settings, std::min(kChunk, elements - first));
  return {4 * numbers};
}

// The same numbers, and places as topk has them, in words.
ExpectedBytes scalecom(const Settings& settings, std::size_t elements) {
  std::size_t bytes = randomk(settings, elements).payload;
  for (std::size_t first = 0; first < elements; first += kChunk) {
    const std::size_t own = std::min(kChunk, elements - first);
    bytes += 4 * ((place_bytes(kept(settings, own), own) + 3) / 4);
  }
  return {bytes};
}

// The same numbers, and tables.
ExpectedBytes sketchedsgd(const Settings& settings, std::size_t elements) {
  const double density = settings.real("density"), sketch = settings.real("sketch");
  if (density + density * sketch >= 1) return {4 * (elements + 1 + (settings.has_feedback() ? chunks_of(elements) : 0))};
  std::size_t bytes = randomk(settings, elements).payload;
  for (std::size_t first = 0; first < elements; first += kChunk) {
    const std::size_t own = std::min(kChunk, elements - first), sent = kept(settings, own);
    const bool all_drawn = std::ceil(settings.real("drawn") * static_cast<double>(sent)) >= static_cast<double>(sent);
    const std::size_t cell = 16 * settings.whole("tables");
    if (!all_drawn) bytes += 4 * cell * (static_cast<std::size_t>(density * sketch * static_cast<double>(own)) / cell);
  }
  return {bytes};
}

// Means of bins, places, and of every entry a sign and a group; of every group a sketch.
ExpectedBytes skcompress(const Settings& settings, std::size_t elements) {
  const std::size_t bits = settings.whole("bits"), groups = settings.whole("groups");
  std::size_t group_bits = 0;
  while ((std::size_t{1} << group_bits) < groups) ++group_bits;
  return coded(settings.text("reduce"), elements, [&](std::size_t own) {
    const std::size_t k = kept(settings, own);
    const double cells = std::ceil(settings.real("cells") * static_cast<double>(k) / static_cast<double>(groups));
    const std::size_t sketches = groups * settings.whole("rows") * static_cast<std::size_t>(cells);
    return (std::size_t{4} << bits) + place_bytes(k, own) + (k + 7) / 8 + (k * group_bits + 7) / 8 + (sketches * (bits - group_bits) + 7) / 8;
  });
}

// Tables alone, or a chunk as it is.
ExpectedBytes fetchsgd(const Settings& settings, std::size_t elements) {
  const double floats = settings.real("density") * settings.real("sketch");
  const std::size_t cell = 16 * settings.whole("tables");
  std::size_t numbers = 1;
  for (std::size_t first = 0; first < elements; first += kChunk) {
    const std::size_t own = std::min(kChunk, elements - first);
    const std::size_t cells = floats < 1 ? static_cast<std::size_t>(floats * static_cast<double>(own)) / cell : 0;
    numbers += cells > 0 ? cell * cells : own;
  }
  return {4 * numbers};
}

}  // namespace

std::optional<ExpectedBytes> expected_bytes(const std::string& spec, std::size_t elements) {
  using Formula = std::optional<ExpectedBytes> (*)(const Settings&, std::size_t);
  static const std::map<std::string, Formula> formulas = {
      {"none", [](const Settings&, std::size_t n) { return std::optional(ExpectedBytes{4 * n}); }},
      {"alq", [](const Settings& settings, std::size_t n) { return std::optional(fitted_levels(settings, n)); }},
      {"amq", [](const Settings& settings, std::size_t n) { return std::optional(fitted_levels(settings, n)); }},
      // Of what is no matrix.
      {"atomo", [](const Settings& settings, std::size_t n) {
         return std::optional(coded(settings.text("reduce"), n, [](std::size_t own) { return 4 * own; }));
       }},
      {"bf16", [](const Settings& settings, std::size_t n) { return std::optional(halves(settings, n)); }},
      {"bmucsc", [](const Settings& settings, std::size_t n) { return std::optional(bmucsc(settings, n)); }},
      {"fetchsgd", [](const Settings& settings, std::size_t n) { return std::optional(fetchsgd(settings, n)); }},
      {"fp16", [](const Settings& settings, std::size_t n) { return std::optional(halves(settings, n)); }},
      {"casq", casq},
      {"demo", [](const Settings& settings, std::size_t n) { return std::optional(topk(settings, n)); }},
      // Of a first step.
      {"dgc", [](const Settings& settings, std::size_t n) { return std::optional(topk(settings, n)); }},
      {"ef21", [](const Settings& settings, std::size_t n) { return std::optional(topk(settings, n)); }},
      {"gradiveq", gradiveq},
      {"mucsc", [](const Settings& settings, std::size_t n) { return std::optional(fitted_levels(settings, n)); }},
      {"qsgd", [](const Settings& settings, std::size_t n) { return std::optional(qsgd(settings, n)); }},
      {"randomk", [](const Settings& settings, std::size_t n) { return std::optional(randomk(settings, n)); }},
      {"thc", [](const Settings& settings, std::size_t n) { return std::optional(thc(settings, n)); }},
      {"scalecom", [](const Settings& settings, std::size_t n) { return std::optional(scalecom(settings, n)); }},
      {"sketchedsgd", [](const Settings& settings, std::size_t n) { return std::optional(sketchedsgd(settings, n)); }},
      {"skcompress", [](const Settings& settings, std::size_t n) { return std::optional(skcompress(settings, n)); }},
      {"tinyscript", [](const Settings& settings, std::size_t n) { return std::optional(fitted_levels(settings, n)); }},
      {"sparseloco", [](const Settings& settings, std::size_t n) { return std::optional(sparseloco(settings, n)); }},
      {"topk", [](const Settings& settings, std::size_t n) { return std::optional(topk(settings, n)); }},
      {"zipml", [](const Settings& settings, std::size_t n) { return std::optional(fitted_levels(settings, n)); }},
  };
  const Spec canonical = Spec::parse(canonical_spec(spec));
  const auto formula = formulas.find(canonical.stages.front().name);
  const Settings settings(canonical);
  const bool is_coded = settings.has("coding") && settings.text("coding") != "fixed";
  if (formula == formulas.end() || is_coded) return std::nullopt;
  return formula->second(settings, elements);
}

}  // namespace thinwire::testing
