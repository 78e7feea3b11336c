#include "compressors/shared/row.h"

namespace thinwire {

SpecParameter whole_number(const char* name, const char* default_value, double minimum, double maximum, const char* help) {
  return {.name = name, .kind = SpecParameter::Kind::kInteger, .default_value = default_value, .minimum = minimum, .maximum = maximum,
          .choices = {}, .help = help};
}

SpecParameter real(const char* name, const char* default_value, double minimum, double maximum, const char* help) {
  return {.name = name, .kind = SpecParameter::Kind::kReal, .default_value = default_value, .minimum = minimum, .maximum = maximum,
          .choices = {}, .help = help};
}

SpecParameter choice(const char* name, std::vector<std::string> choices, const char* help) {
  return {.name = name, .kind = SpecParameter::Kind::kChoice, .default_value = choices.front(), .choices = choices, .help = help};
}

SpecParameter off_or_on(const char* name, const char* default_value, const char* help) {
  return {.name = name, .kind = SpecParameter::Kind::kChoice, .default_value = default_value, .choices = {"off", "on"}, .help = help};
}

SpecParameter feedback(const char* default_value) {
  return off_or_on("feedback", default_value, "error feedback: what was not sent is added to the next step's gradient");
}

SpecParameter reduce() {
  return {.name = "reduce", .kind = SpecParameter::Kind::kChoice, .default_value = "gather", .choices = {"auto", "gather", "scatter"},
          .help = "gather: every worker decodes all codes; scatter: owners average and encode again, so that traffic does not "
                  "grow with the workers; auto: whichever is sooner done, by the link if it was measured"};
}

}  // namespace thinwire
