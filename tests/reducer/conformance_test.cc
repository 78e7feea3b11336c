// Proves the claims of every registry row, for every value of its parameters' ends, worker counts, sizes and contents.
// A new row is covered by being there: what the suite must know of it, the row says, and the suite checks from outside.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <set>

#include <gtest/gtest.h>

#include "kernels/targets.h"
#include "reducer/expected_bytes.h"
#include "reducer/row_specs.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"
#include "sanitized.h"

namespace thinwire::testing {
namespace {

struct Case {
  const Row* row;
  std::string spec;
};

// The sanitizers are slow, and look for what goes wrong alike whatever the numbers are.
constexpr bool kEveryCombination = !kSanitized;

// Nor do they find more where random numbers or the processor's instructions are others (kernels have tests of their own).
constexpr bool kEveryValue = !kSanitized;
constexpr std::size_t kTwoChunks = kSanitized ? 33001 : 40001, kManyElements = kSanitized ? 40003 : 100003;
const std::vector<int> kTriedCounts = kSanitized ? std::vector{1, 2, 5} : std::vector{1, 2, 3, 5};
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

bool is_base(const SpecParameter& parameter) {
  return parameter.kind != SpecParameter::Kind::kChoice || parameter.name == "feedback";
}

// Others do nothing unless some parameter has not its default.
bool matters_alone(const Row& row, const SpecParameter& parameter) {
  return std::ranges::find(row.trials.idle, parameter.name) == row.trials.idle.end();
}

// A row's specs with every kind of feedback, and with every number or with the default ones.
std::vector<std::string> bases(const Row& row, bool every_number) {
  std::vector<std::string> all{beginning_of(row)};
  for (const SpecParameter& parameter : row.info.parameters) {
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

// Every number with and without feedback; then every other choice in turn, likewise; then what the row says is worth a case beyond that.
std::vector<Case> cases_of(const Row& row) {
  std::vector<std::string> specs = bases(row, kEveryCombination), crossed = bases(row, false);
  if (!kEveryCombination) crossed = {crossed.back()};
  for (const SpecParameter& parameter : row.info.parameters)
    for (const std::string& value : parameter.choices)
      if (!is_base(parameter) && matters_alone(row, parameter) && value != parameter.default_value && value != "auto")
        for (const std::string& spec : crossed) specs.push_back(spec + parameter.name + "=" + value + ",");
  std::vector<Case> all;
  std::set<std::string> canonical;
  for (const std::string& spec : specs) {
    all.push_back({&row, finished(spec)});
    canonical.insert(canonical_spec(finished(spec)));
  }
  for (const std::string& settings : row.trials.further) {
    const std::string spec = further_spec(row, settings);
    if (canonical.insert(canonical_spec(spec)).second) all.push_back({&row, spec});
  }
  return all;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Row& row : rows())
    for (Case& of_row : cases_of(row)) all.push_back(std::move(of_row));
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

class Conformance : public ::testing::TestWithParam<Case> {
 protected:
  Workers make(const Layout& layout, int workers) {
    ReducerOptions options;
    options.compressor = GetParam().spec;
    options.measure_every = 1;
    return Workers(layout, workers, options);
  }

  bool is_taken(const Layout& layout, const Gradients& inputs) const;

  const ChosenCompressor chosen_ = make_compressor(GetParam().spec);
  const Claims& claims_ = chosen_.claims;
};

// What does not work on matrices sees only that there are so many elements.
Layout matrix_layout(std::int64_t rows, std::int64_t columns) { return Layout({{"matrix", {rows, columns}}}); }

// Gradients that a row cannot hold: too large, or all of them too small.
bool is_beyond(const Claims& claims, const Gradients& gradients) {
  const double largest = largest_of(gradients);
  return largest > claims.largest || (largest > 0 && largest < claims.smallest);
}

void shrink_to(double largest, Gradients& gradients) {
  const double factor = largest / largest_of(gradients);
  for (auto& gradient : gradients)
    for (float& value : gradient) value = static_cast<float>(factor * static_cast<double>(value));
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
  for (const int count : kTriedCounts)
    for (const std::size_t elements : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{4097}, kTwoChunks})
      for (const std::string& content : kTriedContents) {
        if (elements > 5000 && count != 2) continue;
        SCOPED_TRACE(content + ", " + std::to_string(count) + " workers, " + std::to_string(elements) + " elements");
        const Layout layout({{"a", {static_cast<std::int64_t>(elements)}}, {"b", {3}}, {"matrix", {24, 18}}, {"none", {0}}});
        Workers workers = make(layout, count);
        Gradients residuals(static_cast<std::size_t>(count), std::vector<float>(layout.elements()));
        for (unsigned step = 0; step < 2; ++step) {
          const Gradients inputs = make_gradients(content, count, layout.elements(), step + 1);
          if (is_beyond(claims_, inputs)) break;
          Gradients means = inputs;
          workers.step(means);
          expect_same_bits(means);
          if (claims_.conserves && (chosen_.feedback || claims_.lossless))
            expect_residual_identity(workers, inputs, residuals, means, claims_.rounding);
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
  for (const int count : {1, 2})
    for (const std::string& content : kTriedContents) {
      SCOPED_TRACE(content + ", " + std::to_string(count) + " workers");
      const Layout layout = matrix_layout(131, 381);  // two chunks
      Workers workers = make(layout, count);
      const Gradients inputs = make_gradients(content, count, layout.elements());
      Gradients means = inputs;
      workers.step(means);
      const StepError found = error_of(inputs, means[0]);
      if (claims_.lossless && !is_beyond(claims_, inputs)) {
        EXPECT_LE(found.largest, claims_.rounding * count * largest_of(inputs) + 1e-44);
      }
      // Whether each worker's encoding is a contraction or that of their sum: |sum of errors|^2 <= W sum of |error|^2.
      if (claims_.contractive && !claims_.on_average) {
        EXPECT_LE(found.error, 0.999 * count * found.energy);
      }
      const Counters counters = workers.reducer(0).counters();
      if (count > 1 || counters.second_bytes > 0 || !can_be_measured(found.energy)) continue;
      EXPECT_NEAR(counters.measured_energy, found.energy, 1e-4 * found.energy);
      EXPECT_NEAR(counters.error_energy, found.error, 1e-3 * found.error + 1e-9 * found.energy);
    }
}

// Whether two workers get a finite mean: a row that encodes more than it claims to hold is tried with that.
bool Conformance::is_taken(const Layout& layout, const Gradients& inputs) const {
  Workers workers(layout, 2, ReducerOptions{.compressor = GetParam().spec});
  Gradients means = inputs;
  workers.step(means);
  return std::ranges::all_of(means[0], [](float value) { return std::isfinite(value); });
}

// The same of the expectation, where a single step may miss what is large: over many draws, with the same bound.
TEST_P(Conformance, ErrorContractsOnAverage) {
  if (!claims_.contractive || !claims_.on_average || !kEveryValue) return;
  constexpr unsigned kSeeds = 2048;
  const Layout layout = matrix_layout(41, 49);
  for (const std::string content : {"laplace", "outlier", "sparse", "denormals"}) {
    Gradients inputs = make_gradients(content, 2, layout.elements());
    if (largest_of(inputs) > claims_.largest && !is_taken(layout, inputs)) shrink_to(claims_.largest, inputs);
    double error = 0, energy = 0;
    bool differ = false;
    std::vector<float> first;
    for (unsigned seed = 0; seed < kSeeds; ++seed) {
      ReducerOptions options{.compressor = GetParam().spec};
      options.seed = seed;
      Workers workers(layout, 2, options);
      Gradients means = inputs;
      workers.step(means);
      const StepError found = error_of(inputs, means[0]);
      error += found.error;
      energy += found.energy;
      if (seed == 0) first = means[0];
      differ = differ || means[0] != first;
    }
    EXPECT_LE(error, 0.999 * 2 * energy) << content;
    EXPECT_TRUE(differ) << "nothing is drawn: the claim is too loose";
  }
}

// Rounding errors of one worker's `seeds` decoded means, averaged, are smaller by 1/seeds than a single one's, unless there
// is a bias.
TEST_P(Conformance, UnbiasedErrorsAverageOut) {
  if (!claims_.unbiased || claims_.lossless || chosen_.feedback || !kEveryValue) return;
  constexpr unsigned kSeeds = 256;
  const Layout layout = matrix_layout(50, 60);
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
  // What is remembered is memory that is saved.
  EXPECT_TRUE(!claims_.remembers || chosen_.compressor->make_memory({"p", {40000}}, kChunkElements));
  if (chosen_.feedback || claims_.remembers) return;
  const auto second_after = [&](unsigned first_seed) {
    Workers workers = make(Layout::flat(40000), 2);
    Gradients first = make_gradients("laplace", 2, 40000, first_seed), second = make_gradients("laplace", 2, 40000, 2);
    workers.step(first);
    workers.step(second);
    return second[0];
  };
  EXPECT_EQ(second_after(1), second_after(3));
}

TEST_P(Conformance, DivisionIntoReductionsDoesNotMatter) {
  if (claims_.together) return;
  const Layout layout({{"a", {100, kSanitized ? 340 : 700}}, {"b", {5}}, {"c", {kSanitized ? 4000 : 40000}}, {"d", {1}}});
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

// Where no formula is known to the tests, no step sends more than is claimed, and some step at least a sixth of it, as a looser claim would say nothing; what a stage
// saves its sender does not know.
TEST_P(Conformance, BitsFollowTheFormula) {
  for (const std::size_t elements : {std::size_t{1}, std::size_t{4097}, std::size_t{32768}, kManyElements}) {
    SCOPED_TRACE(std::to_string(elements) + " elements");
    Workers workers = make(Layout::flat(elements), 2);
    const auto expected = expected_bytes(GetParam().spec, elements);
    std::uint64_t before = 0, most = 0;
    for (unsigned step = 0; step < (expected ? 1 : 3); ++step) {
      Gradients gradients = make_gradients("normal", 2, elements, step + 1);
      workers.step(gradients);
      const std::uint64_t sent = workers.reducer(0).counters().payload_bytes;
      most = std::max(most, sent - before);
      before = sent;
    }
    if (expected) {
      EXPECT_EQ(most, expected->payload);
      EXPECT_EQ(workers.reducer(0).counters().second_bytes, expected->second);
      continue;
    }
    const double claimed = claims_.bits * static_cast<double>(elements) / 8, sent = static_cast<double>(most);
    EXPECT_LE(sent, claimed + 64 + 64 * std::ceil(static_cast<double>(elements) / 32768));
    if (elements == kManyElements && chosen_.canonical.find('/') == std::string::npos) {
      // Claims count second encodings, too, of which a worker sends its half.
      const double second = static_cast<double>(workers.reducer(0).counters().second_bytes) / 3;
      EXPECT_GT(second > 0 ? 4 * (sent + second) : 6 * sent, claimed);
    }
  }
}

// Few values and two workers are what those that may gather do gather.
TEST_P(Conformance, PayloadsAreDecodedOneByOneOnlyWhereThatIsClaimed) {
  const Layout layout = Layout::flat(40000);
  Workers workers = make(layout, 2);
  std::atomic<bool> apart = false;
  for (unsigned step = 0; step < 3; ++step) {
    Gradients gradients = make_gradients("sparse", 2, layout.elements(), step);
    in_parallel(2, [&](int rank, Communicator& communicator) {
      Reduction reduction = workers.reducer(rank).reduce(parameters_of(layout, gradients[static_cast<std::size_t>(rank)]));
      while (const Collective* collective = reduction.next()) {
        const bool arrives_apart = collective->kind == CollectiveKind::kGather || collective->kind == CollectiveKind::kScatter;
        if (arrives_apart && collective->purpose != Purpose::kSetup) apart = true;
        communicator.perform(*collective);
      }
    });
  }
  EXPECT_EQ(apart, claims_.aggregation == Aggregation::kGather);
}

TEST_P(Conformance, ALargeBucketOfSeveralMessages) {
  if (chosen_.canonical != canonical_spec(finished(beginning_of(*GetParam().row)))) return;  // large
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
  EXPECT_LT(error, claims_.lost * energy);
}

INSTANTIATE_TEST_SUITE_P(EveryCompressor, Conformance, ::testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace thinwire::testing
