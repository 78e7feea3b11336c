#include "compressors/shared/row.h"

#include <algorithm>

namespace thinwire {

Claims operator&(const Claims& sender, const Claims& carrier) {
  Claims both;
  both.aggregation = sender.aggregation == Aggregation::kGather ? sender.aggregation : carrier.aggregation;
  both.lossless = sender.lossless && carrier.lossless;
  both.unbiased = sender.unbiased && carrier.unbiased;
  both.contractive = sender.contractive && carrier.contractive;
  both.on_average = sender.on_average || carrier.on_average;
  both.conserves = sender.conserves && carrier.conserves;
  both.rounding = std::max(sender.rounding, sender.spread * carrier.rounding);
  both.smallest = std::max(sender.smallest, carrier.smallest);
  both.largest = std::min(sender.largest, carrier.largest);
  both.remembers = sender.remembers || carrier.remembers;
  both.together = sender.together || carrier.together;
  both.bits = std::max(sender.bits, carrier.bits);
  both.lost = 1 - (1 - sender.lost) * (1 - carrier.lost);
  return both;
}

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
