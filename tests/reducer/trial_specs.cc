#include "reducer/trial_specs.h"

#include "reducer/row_specs.h"

namespace thinwire::testing {
namespace {

void add(const std::string& text, std::vector<TrialSpec>& all) {
  if (!is_allowed(text)) return;
  const ChosenCompressor chosen = make_compressor(text);
  TrialSpec spec{.text = text};
  spec.feedback = chosen.feedback;
  spec.conserves = chosen.claims.conserves && (chosen.feedback || chosen.claims.lossless);
  spec.rounding = 2 * chosen.claims.rounding;  // of whole numbers of steps, with scaled gradients
  all.push_back(std::move(spec));
}

// Every choice of every parameter, with every kind of feedback.
std::vector<std::string> choices_of(const Row& row) {
  std::vector<std::string> feedbacks = {beginning_of(row)}, all;
  for (const SpecParameter& parameter : row.info.parameters)
    if (parameter.name == "feedback") {
      feedbacks.clear();
      for (const std::string& choice : parameter.choices) feedbacks.push_back(beginning_of(row) + "feedback=" + choice + ",");
    }
  for (const std::string& with_feedback : feedbacks) {
    all.push_back(finished(with_feedback));
    for (const SpecParameter& parameter : row.info.parameters) {
      if (parameter.name == "feedback") continue;
      for (const std::string& choice : parameter.choices) all.push_back(with_feedback + parameter.name + "=" + choice);
    }
  }
  return all;
}

std::vector<TrialSpec> make() {
  std::vector<TrialSpec> all;
  for (const Row& row : rows())
    for (const std::string& first : choices_of(row)) {
      add(first, all);
      if (row.sends == Sends::kNothing) continue;
      for (const Row& next : rows())
        for (const char* feedback : {"", ":feedback=on"}) add(first + "/" + next.info.name + feedback, all);
    }
  for (const Row& row : rows())
    for (const std::string& settings : row.trials.further) add(further_spec(row, settings), all);
  return all;
}

}  // namespace

const std::vector<TrialSpec>& trial_specs() {
  static const std::vector<TrialSpec> all = make();
  return all;
}

}  // namespace thinwire::testing
