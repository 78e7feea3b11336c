// Messages of every row whose codes are gathered, with right checksums and wrong ones: whatever peers send, a reduction ends with
// PayloadError, with a bucket that is said not to be finite (both leave the memory as it was), or with finite means; and its
// memory can be saved and loaded.
#include <map>

#include "fuzz/spoilt_group.h"
#include "reducer/row_specs.h"

namespace thinwire::fuzz {
namespace {

// Values of a parameter that are tried with everything else: the ends of small ranges, both strategies, feedback.
std::vector<std::string> base_values(const SpecParameter& parameter) {
  if (parameter.name == "reduce") return {"gather", "scatter"};
  if (parameter.name == "feedback") return parameter.choices;
  if (parameter.kind != SpecParameter::Kind::kInteger || parameter.maximum - parameter.minimum >= 16) return {};
  return {std::to_string(static_cast<int>(parameter.minimum)), std::to_string(static_cast<int>(parameter.maximum))};
}

// Values that are tried one and two at a time.
std::vector<std::string> further_values(const SpecParameter& parameter) {
  if (!base_values(parameter).empty()) return {};
  if (parameter.kind == SpecParameter::Kind::kReal) return {std::to_string((parameter.minimum + parameter.maximum) / 2)};
  std::vector<std::string> values = parameter.choices;
  std::erase(values, parameter.default_value);
  return values;
}

std::vector<std::string> further_settings(const CompressorInfo& info) {
  std::vector<std::string> one, all{""};
  for (const SpecParameter& parameter : info.parameters) {
    const std::size_t others = one.size();
    for (const std::string& value : further_values(parameter)) {
      const std::string setting = "," + parameter.name + "=" + value;
      for (std::size_t other = 0; other < others; ++other) all.push_back(one[other] + setting);
      one.push_back(setting);
      all.push_back(setting);
    }
  }
  return all;
}

// Every row's specs with gathered codes.
std::vector<std::string> list_gathered_specs() {
  std::vector<std::string> all;
  const auto add = [&](const std::string& spec) {
    try {
      const ChosenCompressor chosen = make_compressor(spec);
      if (chosen.claims.aggregation == Aggregation::kGather && chosen.compressor->unit() != Unit::kRow) all.push_back(spec);  // rows: fuzz_rows.cc
    } catch (const ArgumentError&) {  // values that do not go together
    }
  };
  for (const Row& row : rows()) {
    const CompressorInfo& info = row.info;
    std::vector<std::string> specs{info.name};
    for (const SpecParameter& parameter : info.parameters) {
      std::vector<std::string> longer;
      for (const std::string& value : base_values(parameter))
        for (const std::string& spec : specs)
          longer.push_back(spec + (spec == info.name ? ":" : ",") + parameter.name + "=" + value);
      if (!longer.empty()) specs = longer;
    }
    for (const std::string& settings : further_settings(info))
      for (const std::string& spec : specs) add(spec + settings);
    for (const std::string& settings : row.trials.further) add(testing::further_spec(row, settings));
  }
  return all;
}

const std::vector<std::string>& gathered_specs() {
  static const std::vector<std::string> instance = list_gathered_specs();
  return instance;
}

const Layout& layout() {
  static const Layout instance({{"matrix", {20, 15}}, {"vector", {70}}, {"empty", {0, 3}}, {"row", {1, 33}}});
  return instance;
}

UsedGroup& used_group(const std::string& spec) {
  static std::map<std::string, UsedGroup> made;
  if (!made.contains(spec)) made.emplace(spec, UsedGroup({layout(), {.compressor = spec}, 3, 1}, "laplace"));
  return made.at(spec);
}

}  // namespace
}  // namespace thinwire::fuzz

// libFuzzer calls it before it begins to time inputs: to try all specs takes seconds under the sanitizers.
extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  thinwire::fuzz::gathered_specs();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  const std::vector<std::string>& specs = fuzz::gathered_specs();
  fuzz::Input input(data, size);
  fuzz::UsedGroup& used = fuzz::used_group(specs[input.choose(specs.size())]);
  fuzz::SpoiltGroup& group = used.begin_at(1 + input.number<std::uint8_t>());  // at 100 and 200 clusters are trained
  for (std::size_t steps = 1 + input.choose(3); steps > 0; --steps)
    fuzz::step_checked(group, testing::contents()[input.choose(testing::contents().size())], input);
  return 0;
}
