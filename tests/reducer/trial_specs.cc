#include "reducer/trial_specs.h"

#include "reducer/workers.h"
#include "thinwire/registry.h"

namespace thinwire::testing {
namespace {

bool says(const std::string& canonical, const char* value) { return canonical.find(value) != std::string::npos; }

// Of a spec with all its stages.
double rounding_of(const std::string& canonical) {
  // The engine rounds sums of halves, which no residual sees.
  if (says(canonical, "bf16:")) return 1.0 / 64;
  if (says(canonical, "fp16:")) return 1.0 / 512;
  if (says(canonical, "mode=peel")) return 1e-4;  // a chain of subtractions adds up what each of them rounds
  return 2e-5;
}

void add(const CompressorInfo& info, const std::string& text, std::vector<TrialSpec>& all) {
  std::string canonical;
  try {
    canonical = canonical_spec(text);
  } catch (const ArgumentError&) {
    return;
  }
  TrialSpec spec{.text = text};
  spec.feedback = says(canonical, "feedback=on") || says(canonical, "feedback=flush") ||
                  (says(canonical, "feedback=auto") && says(canonical, "mode=sketch"));
  spec.conserves = spec.feedback || info.lossless;
  spec.rounding = rounding_of(canonical);
  // Values that these cannot hold would be lost, not rounded.
  spec.only_float32 = false;
  all.push_back(std::move(spec));
}

std::vector<TrialSpec> make() {
  std::vector<TrialSpec> all;
  for (const CompressorInfo& info : compressors()) {
    std::string base = beginning_of(info);
    std::vector<std::string> firsts;
    const auto finished = [](std::string text) {
      text.pop_back();
      return text;
    };
    std::vector<std::string> feedbacks = {base};
    for (const SpecParameter& parameter : info.parameters)
      if (parameter.name == "feedback") {
        feedbacks.clear();
        for (const std::string& choice : parameter.choices) feedbacks.push_back(base + "feedback=" + choice + ",");
      }
    for (const std::string& with_feedback : feedbacks) {
      firsts.push_back(with_feedback);
      for (const SpecParameter& parameter : info.parameters) {
        if (parameter.name == "feedback") continue;
        for (const std::string& choice : parameter.choices) firsts.push_back(with_feedback + parameter.name + "=" + choice + ",");
      }
    }
    for (const std::string& first : firsts) {
      add(info, finished(first), all);
      if (!info.takes_stage) continue;
      for (const CompressorInfo& next : compressors())
        for (const char* feedback : {"", ":feedback=on"}) add(info, finished(first) + "/" + next.name + feedback, all);
    }
  }
  for (const char* text : {"casq:bits=1", "casq:bits=1,reduce=scatter", "casq:bits=8,reduce=scatter", "casq:bits=2,table=0.1,reduce=scatter",
                           "casq:budget=2.5", "casq:bits=3,retrain=2", "casq:rate=0.5", "casq:rate=1,reduce=scatter",
                           "casq:rate=0.1,reduce=scatter,second=0.5", "casq:rate=2,feedback=off", "s2:mode=exact/casq:rate=1", "s2:mode=exact/casq:rate=0.25,reduce=scatter", "qsgd:bits=2,feedback=on,reduce=scatter",
                           "qsgd:bits=5,feedback=on,reduce=sum", "gradiveq:refresh=every,slice=48,smallest=16,feedback=on/qsgd:bits=4,reduce=sum",
                           "gradiveq:learn=1,lag=0,use=3,slice=48,smallest=16,rate=2,feedback=on"})
    for (const CompressorInfo& info : compressors())
      if (std::string(text).starts_with(info.name + ":")) add(info, text, all);
  return all;
}

}  // namespace

const std::vector<TrialSpec>& trial_specs() {
  static const std::vector<TrialSpec> all = make();
  return all;
}

}  // namespace thinwire::testing
