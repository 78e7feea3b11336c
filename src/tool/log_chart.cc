#include "tool/log_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ranges>
#include <sstream>

#include "tool/html.h"

namespace thinwire::tool {
namespace {

constexpr std::array kColours = {"#2f6f4f", "#2563eb", "#b4517f", "#d97706", "#0e7490", "#7c3aed", "#a16207", "#c2452d", "#4b5563", "#65a30d"};

constexpr const char* kStyle = R"(<style>
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:64em;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.4em}svg{width:100%;height:auto}polyline{fill:none;stroke:currentColor;stroke-width:1.5}circle{fill:currentColor}
g text{font-size:11px;fill:currentColor}g:hover polyline{stroke-width:4}.bound polyline,.place{stroke-dasharray:5 4}.bound circle{display:none}
.grid,.place{stroke:#8884;stroke-width:1}.place{stroke:#888}.tick{font-size:11px;text-anchor:middle;fill:#888}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.15em .7em;text-align:right;border-bottom:1px solid #8884}
td:first-child,th:first-child{text-align:left}.least{font-weight:bold}
@media(prefers-color-scheme:dark){body{background:#16181b;color:#ddd}}
</style></head><body>
)";

}  // namespace

double LogChart::across(double x) const { return left() + (right() - left()) * std::log(x / x_.least) / std::log(x_.most / x_.least); }
double LogChart::down(double y) const { return kTop + (kHeight - kTop - kBottom) * std::log(y_.most / y) / std::log(y_.most / y_.least); }

void LogChart::add_grid(const Ticks& x, const Ticks& y, const std::string& below) {
  std::ostringstream out;
  const double bottom = kHeight - kBottom;
  for (const auto& [place, text] : x)
    out << "<line class='grid' x1='" << across(place) << "' x2='" << across(place) << "' y1='" << kTop << "' y2='" << bottom
        << "'/><text class='tick' x='" << across(place) << "' y='" << bottom + 16 << "'>" << escaped(text) << "</text>";
  for (const auto& [place, text] : y)
    out << "<line class='grid' x1='" << left() << "' x2='" << right() << "' y1='" << down(place) << "' y2='" << down(place)
        << "'/><text class='tick' x='" << kTicks / 2 << "' y='" << down(place) + 4 << "'>" << escaped(text) << "</text>";
  out << "<text class='tick' x='" << (left() + right()) / 2 << "' y='" << kHeight - 5 << "'>" << escaped(below) << "</text>";
  grid_ += out.str();
}

void LogChart::add_line(const Points& points, const std::string& name, const std::string& style, bool marks) {
  Points shown;
  for (const auto& [x, y] : points)
    if (x >= x_.least && x <= x_.most && y >= y_.least && y <= y_.most) shown.emplace_back(across(x), down(y));
  if (!shown.empty()) lines_.push_back({std::move(shown), name, style, marks});
}

void LogChart::add_place(double x, const std::string& name) {
  std::ostringstream out;
  out << "<line class='place' x1='" << across(x) << "' x2='" << across(x) << "' y1='" << kTop << "' y2='" << kHeight - kBottom << "'><title>"
      << escaped(name) << "</title></line>";
  grid_ += out.str();
}

std::vector<double> LogChart::places_of_names() const {
  constexpr double kApart = 12;
  std::vector<std::pair<double, std::size_t>> wanted;
  for (const Line& line : lines_) wanted.emplace_back((label_at_ == LabelAt::kEnd ? line.points.back() : line.points.front()).second, wanted.size());
  std::ranges::sort(wanted);
  double above = 0;
  for (auto& [place, number] : wanted) above = place = std::max(place, above + kApart);
  double below = kHeight - kBottom + kApart;
  for (auto& [place, number] : wanted | std::views::reverse) below = place = std::min(place, below - kApart);
  std::vector<double> places(lines_.size());
  for (const auto& [place, number] : wanted) places[number] = place;
  return places;
}

std::string LogChart::svg(const std::string& title) const {
  std::ostringstream out;
  out << "<svg viewBox='0 0 " << kWidth << ' ' << kHeight << "' role='img'><title>" << escaped(title) << "</title>" << grid_;
  const std::vector<double> places = places_of_names();
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const Line& line = lines_[i];
    out << "<g " << line.style << "><title>" << escaped(line.name) << "</title><polyline points='";
    for (const auto& [x, y] : line.points) out << x << ',' << y << ' ';
    out << "'/>";
    if (line.marks)
      for (const auto& [x, y] : line.points) out << "<circle cx='" << x << "' cy='" << y << "' r='3'/>";
    if (label_at_ == LabelAt::kEnd) out << "<text x='" << line.points.back().first + 7;
    else out << "<text text-anchor='end' x='" << line.points.front().first - 7;
    out << "' y='" << places[i] + 4 << "'>" << escaped(line.name) << "</text></g>";
  }
  out << "</svg>";
  return out.str();
}

std::string line_colour(std::size_t number) { return std::string("color='") + kColours[number % kColours.size()] + "'"; }

std::string chart_page_head(const std::string& title) {
  return R"(<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>)" + escaped(title) + "</title>" + kStyle;
}

}  // namespace thinwire::tool
