// Proves the claims of every registry row, for every value of its parameters' ends, worker counts, sizes and contents.
// A new row is covered by being there.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include <gtest/gtest.h>

#include "kernels/targets.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"
#include "sanitized.h"

namespace thinwire::testing {
namespace {

struct Case {
  const CompressorInfo* info;
  std::string spec;
};

// Bits that depend on what is prepared or sampled together, which is a reduction's parameters.
bool has_budget(const std::string& spec) {
  const std::string canonical = canonical_spec(spec);
  const auto has = [&](const std::string& name) {
    return canonical.find(name + "=") != std::string::npos && canonical.find(name + "=0,") == std::string::npos;
  };
  return canonical.starts_with("casq:") && (has("budget") || has("rate"));
}

bool has_feedback(const std::string& spec) {
  const std::string canonical = canonical_spec(spec);
  return canonical.find("feedback=on") != std::string::npos || canonical.find("feedback=flush") != std::string::npos;
}

// The sanitizers are slow, and look for what goes wrong alike whatever the numbers are.
constexpr bool kEveryCombination = !kSanitized;

// Nor do they find more where random numbers or the processor's instructions are others (kernels have tests of their own).
constexpr bool kEveryValue = !kSanitized;
const std::vector<std::string> kTriedContents = kSanitized ? std::vector<std::string>{"normal", "outlier"} : contents();

// Values of a parameter that are worth a case: of numbers the default, the ends and the middle.
std::vector<std::string> values_of(const SpecParameter& parameter) {
  if (parameter.kind == SpecParameter::Kind::kChoice) return parameter.choices;
  const bool small_range = parameter.kind == SpecParameter::Kind::kInteger && parameter.maximum - parameter.minimum < 16;
  if (!small_range) return {parameter.default_value};
  std::set<int> values{static_cast<int>(parameter.minimum), std::stoi(parameter.default_value), static_cast<int>(parameter.maximum)};
  values.insert(static_cast<int>(parameter.minimum + parameter.maximum) / 2);
  std::vector<std::string> texts;
  for (const int value : values) texts.push_back(std::to_string(value));
  return texts;
}

// What the parameters' ranges do not say is worth a case: values that make others matter.
const std::vector<std::string>& further_specs() {
  static const std::vector<std::string> specs = {
      "casq:bits=2,table=0.1",
      "casq:bits=2,table=0.1,feedback=off",
      "casq:bits=3,table=0.05,assign=hash",
      "casq:bits=2,table=0.3,assign=hash,scope=block,precision=bf16",
      "casq:bits=8,table=0.02,scope=block,reduce=scatter",
      "casq:bits=4,signs=apart,tail=0.05,table=0.02,assign=hash,allocate=entropy",
      "casq:bits=2,signs=apart,tail=0.05,table=0.02,assign=hash,allocate=entropy-centre-density",
      "casq:bits=6,tail=0.05,table=0.02,allocate=density",
      "casq:bits=8,signs=apart,tail=0.2,allocate=entropy-centre,table=1",
      "casq:budget=2.5",
      "casq:rate=1",
      "casq:rate=0.25,reduce=scatter",
      "casq:rate=4,feedback=off",
      "casq:rate=1,feedback=off,reduce=scatter,second=2",
      "casq:rate=0.5,weight=0.5",
      "gradiveq:learn=1,lag=0,slice=48,smallest=16,rate=2",
      "gradiveq:learn=1,lag=0,slice=48,smallest=16,rate=1.5,feedback=on",
      "gradiveq:learn=1,lag=0,slice=48,smallest=16,rate=6,axis=auto,feedback=flush",
      "gradiveq:refresh=every,slice=48,smallest=16,feedback=on/qsgd:bits=4,reduce=sum",
      "gradiveq:refresh=every,slice=48,smallest=16/bf16",
      "casq:budget=4,scope=block,precision=bf16,reduce=scatter",
  };
  return specs;
}

bool is_base(const SpecParameter& parameter) {
  return parameter.kind != SpecParameter::Kind::kChoice || parameter.name == "feedback";
}

// Only with tables.
bool matters_alone(const SpecParameter& parameter) { return parameter.name != "assign" && parameter.name != "allocate"; }

// A row's specs with every kind of feedback, and with every number or with the default ones.
std::vector<std::string> bases(const CompressorInfo& info, bool every_number) {
  std::vector<std::string> all{beginning_of(info)};
  for (const SpecParameter& parameter : info.parameters) {
    if (!is_base(parameter) || all.front().find(parameter.name + "=") != std::string::npos) continue;
    std::vector<std::string> extended;
    for (const std::string& spec : all)
      for (const std::string& value : every_number || parameter.name == "feedback" ? values_of(parameter)
                                                                                   : std::vector{parameter.default_value})
        extended.push_back(spec + parameter.name + "=" + value + ",");
    all = extended;
  }
  return all;
}

// Every number with and without feedback; then every other choice in turn, likewise.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const CompressorInfo& info : compressors()) {
    std::vector<std::string> specs = bases(info, kEveryCombination), crossed = bases(info, false);
    if (!kEveryCombination) crossed = {crossed.back()};
    for (const SpecParameter& parameter : info.parameters)
      for (const std::string& value : parameter.choices)
        if (!is_base(parameter) && matters_alone(parameter) && value != parameter.default_value && value != "auto")
          for (const std::string& spec : crossed) specs.push_back(spec + parameter.name + "=" + value + ",");
    for (std::string& spec : specs) {
      spec.pop_back();
      all.push_back({&info, spec});
    }
    for (const std::string& spec : further_specs())
      if (spec.starts_with(info.name + ":")) all.push_back({&info, spec});
  }
  return all;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.spec;
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

double largest_of(const Gradients& gradients) {
  double largest = 0;
  for (const auto& gradient : gradients)
    for (const float value : gradient) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

// What additions in 16 bits may lose: the engine rounds sums of halves, which no residual sees.
double rounding_of(const CompressorInfo& info, const std::string& spec) {
  if (info.name == "bf16") return 1.0 / 128;
  if (info.name == "fp16") return 1.0 / 1024;
  if (spec.find("mode=peel") != std::string::npos) return 1e-4;  // a chain of subtractions adds up what each of them rounds
  return 1e-5;
}

class Conformance : public ::testing::TestWithParam<Case> {
 protected:
  Workers make(const Layout& layout, int workers) {
    ReducerOptions options;
    options.compressor = GetParam().spec;
    options.measure_every = 1;
    return Workers(layout, workers, options);
  }
};

// fp16 cannot hold 1e38, nor ones so small.
bool is_beyond(const CompressorInfo& info, const std::string& spec, const std::string& content) {
  // An outlier that is sent little by little stays in the residual: two steps' of five workers add up to more than a float.
  const bool estimates = spec.find("mode=sketch") != std::string::npos || spec.find("mode=peel") != std::string::npos;
  if (content == "outlier" && estimates) return true;
  return info.name == "fp16" && (content == "outlier" || content == "denormals");
}

void expect_same_bits(const Gradients& means) {
  for (std::size_t w = 1; w < means.size(); ++w)
    ASSERT_TRUE(means[0].empty() || std::memcmp(means[0].data(), means[w].data(), means[0].size() * sizeof(float)) == 0)
        << "workers 0 and " << w << " end with different means";
}

// Sum of inputs = W mean + sum of residuals, element by element, to rounding relative to the largest value.
void expect_residual_identity(Workers& workers, const Gradients& inputs, const Gradients& old_residuals, const Gradients& means,
                              double rounding) {
  Gradients residuals;
  for (int rank = 0; rank < workers.count(); ++rank) residuals.push_back(workers.residual(rank));
  const double tolerance =
      rounding * workers.count() * std::max({largest_of(inputs), largest_of(old_residuals), 1e-43}) + 1e-44;
  for (std::size_t i = 0; i < means[0].size(); ++i) {
    double in = 0, out = workers.count() * static_cast<double>(means[0][i]);
    for (std::size_t w = 0; w < inputs.size(); ++w) {
      in += static_cast<double>(inputs[w][i]) + static_cast<double>(old_residuals[w][i]);
      out += static_cast<double>(residuals[w][i]);
    }
    ASSERT_NEAR(in, out, tolerance) << "at element " << i;
  }
}

TEST_P(Conformance, MeansAgreeAndNothingIsLost) {
  for (const int count : {1, 2, 3, 5})
    for (const std::size_t elements : {0u, 1u, 7u, 4097u, 70001u})
      for (const std::string& content : kTriedContents) {
        if (is_beyond(*GetParam().info, GetParam().spec, content) || (elements > 5000 && count != 2)) continue;
        SCOPED_TRACE(content + ", " + std::to_string(count) + " workers, " + std::to_string(elements) + " elements");
        const Layout layout({{"a", {static_cast<std::int64_t>(elements)}}, {"b", {3}}, {"none", {0}}});
        Workers workers = make(layout, count);
        Gradients residuals(static_cast<std::size_t>(count), std::vector<float>(layout.elements()));
        for (unsigned step = 0; step < 2; ++step) {
          const Gradients inputs = make_gradients(content, count, layout.elements(), step + 1);
          Gradients means = inputs;
          workers.step(means);
          expect_same_bits(means);
          if (has_feedback(GetParam().spec) || GetParam().info->lossless)
            expect_residual_identity(workers, inputs, residuals, means, rounding_of(*GetParam().info, GetParam().spec));
          for (int rank = 0; rank < count; ++rank) residuals[static_cast<std::size_t>(rank)] = workers.residual(rank);
          if (HasFatalFailure()) return;
        }
      }
}

// Of a step, in double arithmetic and from outside: what a row reports of itself is no proof.
struct StepError {
  double error = 0;    // |W mean - sum of inputs|^2
  double largest = 0;  // of its elements
  double energy = 0;   // sum of |input|^2 over all workers
};

StepError error_of(const Gradients& inputs, const std::vector<float>& mean) {
  StepError found;
  for (std::size_t i = 0; i < mean.size(); ++i) {
    double difference = static_cast<double>(inputs.size()) * static_cast<double>(mean[i]);
    for (const auto& input : inputs) {
      difference -= static_cast<double>(input[i]);
      found.energy += static_cast<double>(input[i]) * static_cast<double>(input[i]);
    }
    found.error += difference * difference;
    found.largest = std::max(found.largest, std::abs(difference));
  }
  return found;
}

// The measured figures are sums of floats.
bool can_be_measured(double energy) { return energy > 1e-30 && energy < 1e38; }

TEST_P(Conformance, ErrorIsWhatIsClaimed) {
  const CompressorInfo& info = *GetParam().info;
  for (const int count : {1, 2})
    for (const std::string& content : kTriedContents) {
      SCOPED_TRACE(content + ", " + std::to_string(count) + " workers");
      const Layout layout = Layout::flat(50021);
      Workers workers = make(layout, count);
      const Gradients inputs = make_gradients(content, count, layout.elements());
      Gradients means = inputs;
      workers.step(means);
      const StepError found = error_of(inputs, means[0]);
      if (info.lossless) {
        EXPECT_LE(found.largest, rounding_of(info, GetParam().spec) * count * largest_of(inputs) + 1e-44);
      }
      // Whether each worker's encoding is a contraction or that of their sum: |sum of errors|^2 <= W sum of |error|^2.
      if (info.contractive) {
        EXPECT_LE(found.error, 0.999 * count * found.energy);
      }
      const Counters counters = workers.reducer(0).counters();
      if (count > 1 || counters.second_bytes > 0 || !can_be_measured(found.energy)) continue;
      EXPECT_NEAR(counters.measured_energy, found.energy, 1e-4 * found.energy);
      EXPECT_NEAR(counters.error_energy, found.error, 1e-3 * found.error + 1e-9 * found.energy);
    }
}

// Rounding errors of one worker's `seeds` decoded means, averaged, are smaller by 1/seeds than a single one's, unless there
// is a bias.
TEST_P(Conformance, UnbiasedErrorsAverageOut) {
  const CompressorInfo& info = *GetParam().info;
  if (!info.unbiased || info.lossless || has_feedback(GetParam().spec) || !kEveryValue) return;
  constexpr unsigned kSeeds = 256;
  const Layout layout = Layout::flat(3000);
  const Gradients gradients = make_gradients("laplace", 2, layout.elements());
  std::vector<double> sum(layout.elements());
  double single = 0, together = 0;
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    ReducerOptions options{.compressor = GetParam().spec};
    options.seed = seed;
    Workers workers(layout, 2, options);
    Gradients means = gradients;
    workers.step(means);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const double exact = 0.5 * (static_cast<double>(gradients[0][i]) + static_cast<double>(gradients[1][i]));
      const double error = static_cast<double>(means[0][i]) - exact;
      sum[i] += error;
      single += error * error / kSeeds;
    }
  }
  for (const double error : sum) together += error * error / kSeeds / kSeeds;
  EXPECT_GT(single, 0);
  EXPECT_LT(together, 1.2 * single / kSeeds);  // of 3,000 values: 1 with a deviation of about .05
}

TEST_P(Conformance, StateIsFreshWithoutFeedback) {
  if (has_feedback(GetParam().spec)) return;
  // Their thresholds and components are from the first step.
  if (GetParam().info->name == "casq" || GetParam().info->name == "gradiveq") return;
  const auto second_after = [&](unsigned first_seed) {
    Workers workers = make(Layout::flat(40000), 2);
    Gradients first = make_gradients("laplace", 2, 40000, first_seed), second = make_gradients("laplace", 2, 40000, 2);
    workers.step(first);
    workers.step(second);
    return second[0];
  };
  if (canonical_spec(GetParam().spec).find("mode=sketch") != std::string::npos) return;  // every step has hashes of its own
  EXPECT_EQ(second_after(1), second_after(3));
}

TEST_P(Conformance, DivisionIntoReductionsDoesNotMatter) {
  if (has_budget(GetParam().spec)) return;
  const Layout layout({{"a", {100, 700}}, {"b", {5}}, {"c", {40000}}, {"d", {1}}});
  Workers together = make(layout, 3), apart = make(layout, 3);
  for (unsigned step = 0; step < 3; ++step) {
    Gradients one = make_gradients("normal", 3, layout.elements(), step), other = one;
    together.step(one);
    apart.step(other, {0, 1, 3});
    ASSERT_EQ(one, other) << "at step " << step;
    for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(together.residual(rank), apart.residual(rank));
  }
}

TEST_P(Conformance, EverySimdTargetGivesTheSameBits) {
  if (!kEveryValue) return;
  const Layout layout({{"a", {33333}}, {"b", {17}}});
  std::vector<float> expected;
  for (const std::string& target : kernels::available_targets()) {
    kernels::force_target(target);
    Workers workers = make(layout, 2);
    Gradients gradients;
    for (unsigned step = 0; step < 2; ++step) {
      gradients = make_gradients("laplace", 2, layout.elements(), step);
      workers.step(gradients);
    }
    gradients[0].insert(gradients[0].end(), gradients[1].begin(), gradients[1].end());
    const std::vector<float> residual = workers.residual(1);
    gradients[0].insert(gradients[0].end(), residual.begin(), residual.end());
    if (expected.empty()) expected = gradients[0];
    EXPECT_EQ(gradients[0], expected) << target;
  }
  kernels::force_target("");
}

// The value of a parameter in a spec that has all written out.
std::string value_in(const std::string& canonical, const std::string& name) {
  const std::size_t begin = canonical.find(name + "=") + name.size() + 1;
  return canonical.substr(begin, canonical.find(',', begin) - begin);
}

// What casq sends of so many elements, if every `workers`-th chunk from `owner` on is sent.
std::size_t casq_message_bytes(std::size_t elements, const std::string& spec, std::size_t owner, std::size_t workers) {
  const std::string canonical = canonical_spec(spec);
  const std::size_t bits = std::stoul(value_in(canonical, "bits")), clusters = std::size_t{1} << bits;
  const double table = std::stod(value_in(canonical, "table"));
  const std::size_t entry = value_in(canonical, "precision") == "bf16" ? 2 : 4;
  std::size_t chunks = 0, codes = 0;
  for (std::size_t first = owner * 32768; first < elements; first += workers * 32768, ++chunks) {
    const std::size_t own = std::min<std::size_t>(32768, elements - first);
    const auto buckets = static_cast<std::size_t>(table * static_cast<double>(own));
    codes += entry * (clusters + buckets) + (own * bits + 7) / 8;
    if (buckets > 0) codes += 2 * clusters;
    if (value_in(canonical, "scope") == "block") codes += 2 * ((own + 511) / 512);
  }
  return 12 + (chunks + 7) / 8 + codes;
}

std::size_t bits_of(const std::string& spec) { return std::stoul(value_in(canonical_spec(spec), "bits")); }

// Likewise qsgd with buckets of 512.
std::size_t qsgd_message_bytes(std::size_t elements, std::size_t bits, std::size_t owner, std::size_t workers) {
  std::size_t chunks = 0, codes = 0;
  for (std::size_t first = owner * 32768; first < elements; first += workers * 32768, ++chunks) {
    const std::size_t part = std::min<std::size_t>(32768, elements - first);
    codes += 4 * ((part + 511) / 512) + (part * bits + 7) / 8;
  }
  return 12 + (chunks + 7) / 8 + codes;
}

// What two workers' levels take as fields of words, with the shared norms.
std::size_t qsgd_sum_bytes(std::size_t elements, std::size_t bits, bool feedback) {
  std::size_t bytes = 4, width = 1;  // whether all is finite
  while ((std::size_t{1} << width) <= 2 * 2 * ((std::size_t{1} << (bits - 1)) - 1)) ++width;
  for (std::size_t first = 0; first < elements; first += 32768) {
    const std::size_t part = std::min<std::size_t>(32768, elements - first), fields = 32 / width;
    bytes += 4 * ((part + 511) / 512) + 4 * ((part + fields - 1) / fields) + (feedback ? 4 : 0);
  }
  return bytes;
}

TEST_P(Conformance, BitsFollowTheFormula) {
  const CompressorInfo& info = *GetParam().info;
  if (has_budget(GetParam().spec)) return;  // casq_buckets_test.cc has it
  if (info.unit == Unit::kRow) return;  // depends on the rows that are used: s2_test.cc
  for (const std::size_t elements : {1u, 4097u, 32768u, 100003u}) {
    Workers workers = make(Layout::flat(elements), 2);
    Gradients gradients = make_gradients("normal", 2, elements);
    workers.step(gradients);
    const std::size_t chunks = (elements + 32767) / 32768;
    std::size_t expected = elements * (info.name == "none" ? 4 : 2);
    if (info.name != "none" && GetParam().spec.find("feedback=on") != std::string::npos) expected += 2 * (1 + chunks);
    if (info.name == "gradiveq") {  // a learning step; compressing ones are in gradiveq_test.cc
      const std::size_t chunk = 131072 / 48 * 48;
      expected = 4 * elements + (has_feedback(GetParam().spec) ? 4 * (1 + (elements + chunk - 1) / chunk) : 0);
    }
    if (info.name == "casq" || info.name == "qsgd") {
      const auto message_bytes = [&](std::size_t owner, std::size_t owners) {
        if (info.name == "casq") return casq_message_bytes(elements, GetParam().spec, owner, owners);
        return qsgd_message_bytes(elements, bits_of(GetParam().spec), owner, owners);
      };
      const std::size_t shard = message_bytes(0, 2);  // worker 0 owns the longer shard
      const bool scattered = GetParam().spec.find("reduce=scatter") != std::string::npos;
      expected = scattered ? 2 * shard : message_bytes(0, 1);
      if (GetParam().spec.find("reduce=sum") != std::string::npos) expected = qsgd_sum_bytes(elements, bits_of(GetParam().spec), has_feedback(GetParam().spec));
      EXPECT_EQ(workers.reducer(0).counters().second_bytes, scattered ? shard : 0);
    }
    EXPECT_EQ(workers.reducer(0).counters().payload_bytes, expected);
  }
}

TEST_P(Conformance, ALargeBucketOfSeveralMessages) {
  const std::string once = beginning_of(*GetParam().info);
  if (canonical_spec(GetParam().spec) != canonical_spec(once.substr(0, once.size() - 1))) return;  // large
  const std::size_t elements = (std::size_t{1} << 23) + 1000;
  Workers workers = make(Layout::flat(elements), 2);
  Gradients gradients(2, std::vector<float>(elements));
  for (std::size_t i = 0; i < elements; ++i) gradients[0][i] = gradients[1][i] = static_cast<float>(i % 251) - 125;
  const Gradients inputs = gradients;
  workers.step(gradients);
  expect_same_bits(gradients);
  double error = 0, energy = 0;
  for (std::size_t i = 0; i < elements; ++i) {
    const double difference = static_cast<double>(gradients[0][i]) - static_cast<double>(inputs[0][i]);
    error += difference * difference;
    energy += static_cast<double>(inputs[0][i]) * static_cast<double>(inputs[0][i]);
  }
  EXPECT_LT(error, 0.3 * energy);  // one bit leaves a quarter of a uniform distribution's
}

INSTANTIATE_TEST_SUITE_P(EveryCompressor, Conformance, ::testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace thinwire::testing
