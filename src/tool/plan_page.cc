#include <algorithm>
#include <cmath>
#include <sstream>

#include "tool/html.h"
#include "tool/log_chart.h"
#include "tool/planning.h"
#include "tool/table.h"

namespace thinwire::tool {
namespace {

constexpr double kSlowest = 1.25e6, kFastest = 1.25e10;  // bytes a second
constexpr int kStepsADecade = 16;

LogChart::Points steps_over_rates(const Plan& plan, const PlanRow& row) {
  LogChart::Points points;
  const ModelledStep step = plan.modelled(row);
  for (int i = 0; i <= 4 * kStepsADecade; ++i) {
    const double bytes_per_second = kSlowest * std::pow(10.0, static_cast<double>(i) / kStepsADecade);
    points.emplace_back(bytes_per_second, step.seconds_at(bytes_per_second));
  }
  return points;
}

std::string picture(const Plan& plan, const PlanOptions& options) {
  std::vector<LogChart::Points> lines;
  LogChart::Range seconds{1e300, 0};
  for (const PlanRow& row : plan.rows) {
    lines.push_back(steps_over_rates(plan, row));
    for (const auto& [rate, time] : lines.back()) seconds = {std::min(seconds.least, time), std::max(seconds.most, time)};
  }
  seconds = {seconds.least / 1.2, seconds.most * 1.2};
  LogChart chart({kSlowest, kFastest * 1.001}, seconds, LogChart::LabelAt::kBeginning);
  LogChart::Ticks rates, times;
  for (double rate = kSlowest; rate < 1.1 * kFastest; rate *= 10) rates.emplace_back(rate, short_rate(rate));
  for (double time = std::pow(10.0, std::ceil(std::log10(seconds.least))); time < seconds.most; time *= 10)
    times.emplace_back(time, milliseconds(time) + " ms");
  chart.add_grid(rates, times, options.per_host > 1 ? "a host's link" : "a worker's link");
  for (std::size_t r = 0; r < lines.size(); ++r) {
    const bool plain = plan.rows[r].spec == kPlainSpec;
    chart.add_line(lines[r], plan.rows[r].spec, plain ? "class='bound' color='#888'" : line_colour(r), false);
  }
  const double given = plan.step.link.bytes_per_second;
  if (given >= kSlowest && given <= kFastest) chart.add_place(given, short_rate(given));
  return chart.svg("Seconds of a step over the link's rate");
}

}  // namespace

std::string plan_page(const Plan& plan, const PlanOptions& options) {
  std::ostringstream out;
  out << chart_page_head("Would compression pay?") << "<h1>" << with_commas(plan.elements) << " float32, " << workers_text(options) << ", "
      << short_rate(plan.step.link.bytes_per_second) << ", " << milliseconds(plan.step.link.round_seconds) << " ms a round, "
      << milliseconds(plan.step.compute_seconds) << " ms of computation</h1><p>" << escaped(verdict(plan))
      << "</p><p>Predicted time of a step on links of other rates, where everything else is the same and each spec travels as on the link above "
         "(dashed upright line). Dashed: uncompressed. A line under the pointer becomes thick.</p>"
      << picture(plan, options) << "<table><tr><th>on the link above</th><th>bits an entry</th><th>wire, ms</th><th>codec, ms</th><th>step, ms</th>"
      << "<th>speedup</th><th>pays below</th><th>error</th></tr>";
  for (const PlanRow& row : plan.rows)
    out << "<tr><td>" << escaped(row.spec) << "</td><td>" << number_text(plan.bits(row)) << "</td><td>" << milliseconds(row.time.wire_seconds)
        << "</td><td>" << milliseconds(row.time.codec_seconds) << "</td><td>" << milliseconds(row.time.seconds) << "</td><td>"
        << number_text(row.speedup) << "</td><td>" << pays_text(row) << "</td><td>" << (row.error ? short_number(*row.error) : "-") << "</td></tr>";
  out << "</table><p>Codecs were measured on one machine, on noise.</p></body></html>\n";
  return out.str();
}

}  // namespace thinwire::tool
