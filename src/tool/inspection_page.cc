#include <algorithm>
#include <cmath>
#include <sstream>

#include "tool/html.h"
#include "tool/inspection.h"
#include "tool/table.h"

namespace thinwire::tool {
namespace {

constexpr double kWidth = 430, kHeight = 120;

std::string percent(double share) { return short_number(100 * share) + " %"; }
std::string text(const std::optional<double>& value) { return value ? short_number(*value) : "-"; }

// Negative values to the left, zero in the middle; octaves of magnitude outwards.
double place(double bins, bool negative) {
  const double half = kWidth / 2, step = half / GradientStatistics::kBins;
  return negative ? half - (bins + 1) * step : half + bins * step;
}

double height_of(std::uint64_t count, std::uint64_t most) {
  if (count == 0) return 0;
  return (kHeight - 20) * (0.05 + 0.95 * std::log1p(static_cast<double>(count)) / std::log1p(static_cast<double>(most)));
}

void add_centres(std::ostream& out, const GradientStatistics& statistics, const std::vector<float>& centres) {
  for (const float centre : centres) {
    double x = kWidth / 2;
    if (centre != 0) {
      const double octaves = std::log2(std::abs(static_cast<double>(centre)) / statistics.mean_magnitude);
      const double bins = std::clamp(2 * (octaves - GradientStatistics::kLowestOctave), 0.0, GradientStatistics::kBins - 1.0);
      x = kWidth / 2 + (centre < 0 ? -1 : 1) * bins * kWidth / 2 / GradientStatistics::kBins;
    }
    out << "<line class='centre' x1='" << x << "' x2='" << x << "' y1='0' y2='" << kHeight - 20 << "'/>";
  }
}

// Logarithmic in both directions. centres: marked, if there are any.
std::string histogram(const GradientStatistics& statistics, const std::vector<float>& centres) {
  std::ostringstream out;
  std::uint64_t most = 1;
  for (const auto* side : {&statistics.negative, &statistics.positive}) most = std::max(most, *std::ranges::max_element(*side));
  out << "<svg viewBox='0 0 " << kWidth << ' ' << kHeight << "' role='img'><title>Counts by magnitude, logarithmic</title>";
  for (int bin = 0; bin < GradientStatistics::kBins; ++bin)
    for (const bool negative : {true, false}) {
      const auto count = (negative ? statistics.negative : statistics.positive)[static_cast<std::size_t>(bin)];
      const double height = height_of(count, most);
      if (count > 0)
        out << "<rect x='" << place(bin, negative) << "' y='" << kHeight - 20 - height << "' width='"
            << kWidth / 2 / GradientStatistics::kBins - 0.5 << "' height='" << height << "'/>";
    }
  if (statistics.mean_magnitude > 0) add_centres(out, statistics, centres);
  const double one = -2.0 * GradientStatistics::kLowestOctave;
  for (const bool negative : {true, false})
    out << "<text x='" << place(one, negative) << "' y='" << kHeight - 5 << "'>" << (negative ? "-" : "+") << "mean</text>";
  out << "<text x='" << kWidth / 2 << "' y='" << kHeight - 5 << "'>0</text></svg>";
  return out.str();
}

std::string spectrum(const std::vector<double>& shares) {
  if (shares.empty()) return "<p class='none'>no matrix</p>";
  std::ostringstream out;
  out << "<svg viewBox='0 0 " << kWidth << ' ' << kHeight << "' role='img'><title>Energy in the first singular vectors</title>"
      << "<polyline points='0," << kHeight - 20;
  double held = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    held += shares[i];
    out << ' ' << kWidth * static_cast<double>(i + 1) / static_cast<double>(shares.size()) << ','
        << (kHeight - 20) * (1 - held);
  }
  out << "'/><text x='20' y='" << kHeight - 5 << "'>1</text><text x='" << kWidth - 20 << "' y='" << kHeight - 5 << "'>"
      << shares.size() << "</text></svg>";
  return out.str();
}

void add_errors(std::ostream& out, const std::vector<std::optional<double>>& errors) {
  for (const auto& error : errors) out << "<td>" << text(error) << "</td>";
}

std::string figures(const GradientStatistics& statistics) {
  std::ostringstream out;
  out << "mean magnitude " << short_number(statistics.mean_magnitude) << ", largest " << short_number(statistics.largest)
      << ", kurtosis " << short_number(statistics.kurtosis) << ", largest hundredth holds " << percent(statistics.top_percent)
      << " of the energy, zeros " << percent(statistics.zeros) << ", zero rows " << percent(statistics.zero_rows);
  if (!statistics.spectrum.empty())
    out << ", 90 % of the energy in " << rank_for(statistics.spectrum, 0.9) << " of " << statistics.spectrum.size()
        << " singular vectors";
  return out.str();
}

constexpr const char* kHead = R"(<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Gradient</title><style>
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:62em;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.4em}h2{font-size:1.05em;margin:2em 0 .3em}.pair{display:flex;flex-wrap:wrap;gap:1.5em}
figure{margin:0;flex:1 1 24em}figcaption{color:#666;font-size:.85em}svg{width:100%;max-width:34em;height:auto}
rect{fill:#6a8fb5}polyline{fill:none;stroke:#2f6f4f;stroke-width:2}.centre{stroke:#c2452d;stroke-width:1.5}
text{font-size:11px;text-anchor:middle;fill:#666}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.15em .8em;text-align:right;border-bottom:1px solid #eee}td:first-child,th:first-child{text-align:left}
.none{color:#888}@media(prefers-color-scheme:dark){body{background:#16181b;color:#ddd}td,th{border-color:#333}}
</style></head><body>
)";

void add_table(std::ostream& out, const Inspection& inspection) {
  out << "<table><tr><th>error left by casq</th>";
  for (const double bits : inspection.casq_bits) out << "<th>" << short_number(bits) << " bits</th>";
  out << "</tr>";
  for (const InspectedParameter& parameter : inspection.parameters) {
    out << "<tr><td>" << escaped(parameter.name) << "</td>";
    add_errors(out, parameter.casq_error);
    out << "</tr>";
  }
  out << "<tr><td>all</td>";
  add_errors(out, inspection.casq_error);
  out << "</tr></table><table><tr><th>casq:rate=</th>";
  for (const InspectedRate& rate : inspection.rates) out << "<th>" << short_number(rate.rate) << "</th>";
  out << "</tr><tr><td>error left, all together</td>";
  std::vector<std::optional<double>> errors;
  for (const InspectedRate& rate : inspection.rates) errors.push_back(rate.error);
  add_errors(out, errors);
  out << "</tr></table>";
}

}  // namespace

std::string inspection_page(const Inspection& inspection, const std::string& title) {
  constexpr std::size_t kShownBits = 2;
  std::ostringstream out;
  out << kHead << "<h1>" << escaped(title) << "</h1><p>" << with_commas(inspection.all.elements) << " elements: "
      << figures(inspection.all) << ".</p>" << histogram(inspection.all, {});
  add_table(out, inspection);
  for (const InspectedParameter& parameter : inspection.parameters) {
    const double share = inspection.energy > 0 ? parameter.energy / inspection.energy : 0;
    out << "<h2>" << escaped(parameter.name) << "</h2><p>" << with_commas(parameter.statistics.elements) << " elements, "
        << percent(share) << " of the energy: " << figures(parameter.statistics) << ".</p><div class='pair'><figure>"
        << histogram(parameter.statistics, parameter.centres[kShownBits - 1])
        << "<figcaption>values by magnitude, and what casq:bits=2 decodes those of the first chunk to</figcaption></figure><figure>"
        << spectrum(parameter.statistics.spectrum)
        << "<figcaption>share of the energy in the first singular vectors</figcaption></figure></div>";
  }
  out << "</body></html>\n";
  return out.str();
}

}  // namespace thinwire::tool
