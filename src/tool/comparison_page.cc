#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "tool/comparison.h"
#include "tool/html.h"
#include "tool/table.h"

namespace thinwire::tool {
namespace {

// Both axes are logarithmic.
struct Axes {
  static constexpr double kWidth = 900, kHeight = 560, kLeft = 60, kRight = 160, kTop = 10, kBottom = 40;
  double least_bits, most_bits, least_error, most_error;

  double x(double bits) const { return kLeft + (kWidth - kLeft - kRight) * std::log(bits / least_bits) / std::log(most_bits / least_bits); }
  double y(double error) const {
    return kTop + (kHeight - kTop - kBottom) * std::log(most_error / error) / std::log(most_error / least_error);
  }
};

Axes axes_of(const Comparison& comparison) {
  constexpr double kMargin = 1.3;
  Axes axes{comparison.bits.front() / kMargin, comparison.bits.back() * kMargin, 0.5, 1.5};
  for (const ComparedCurve& curve : comparison.curves)
    for (const ComparedPoint& point : curve.points)
      if (point.error > 0 && point.bits > axes.least_bits && point.bits < axes.most_bits)
        axes.least_error = std::min(axes.least_error, point.error / kMargin);
  axes.least_error = std::max(axes.least_error, 1e-8);
  return axes;
}

using Points = std::vector<std::pair<double, double>>;

void add_line(std::ostream& out, const Axes& axes, const Points& points, const std::string& name, const std::string& style) {
  Points shown;
  for (const auto& [bits, error] : points)
    if (bits >= axes.least_bits && bits <= axes.most_bits && error >= axes.least_error && error <= axes.most_error)
      shown.emplace_back(axes.x(bits), axes.y(error));
  if (shown.empty()) return;
  out << "<g " << style << "><title>" << escaped(name) << "</title><polyline points='";
  for (const auto& [x, y] : shown) out << x << ',' << y << ' ';
  out << "'/>";
  for (const auto& [x, y] : shown) out << "<circle cx='" << x << "' cy='" << y << "' r='3'/>";
  out << "<text x='" << shown.back().first + 7 << "' y='" << shown.back().second + 4 << "'>" << escaped(name) << "</text></g>";
}

void add_grid(std::ostream& out, const Axes& axes, const std::vector<double>& bits) {
  for (const double b : bits)
    out << "<line class='grid' x1='" << axes.x(b) << "' x2='" << axes.x(b) << "' y1='" << Axes::kTop << "' y2='" << Axes::kHeight - Axes::kBottom
        << "'/><text class='tick' x='" << axes.x(b) << "' y='" << Axes::kHeight - Axes::kBottom + 16 << "'>" << short_number(b) << "</text>";
  for (double error = 1; error >= axes.least_error; error /= 10)
    out << "<line class='grid' x1='" << Axes::kLeft << "' x2='" << Axes::kWidth - Axes::kRight << "' y1='" << axes.y(error) << "' y2='" << axes.y(error)
        << "'/><text class='tick' x='" << Axes::kLeft - 24 << "' y='" << axes.y(error) + 4 << "'>" << short_number(error) << "</text>";
  out << "<text class='tick' x='" << (Axes::kLeft + Axes::kWidth - Axes::kRight) / 2 << "' y='" << Axes::kHeight - 5 << "'>bits an entry</text>";
}

constexpr std::array kColours = {"#2f6f4f", "#2563eb", "#b4517f", "#d97706", "#0e7490", "#7c3aed", "#a16207", "#c2452d", "#4b5563", "#65a30d"};

constexpr const char* kHead = R"(<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Compressors compared</title><style>
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:64em;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.4em}svg{width:100%;height:auto}polyline{fill:none;stroke:currentColor;stroke-width:1.5}circle{fill:currentColor}
g text{font-size:11px;fill:currentColor}g:hover polyline{stroke-width:4}.bound polyline{stroke-dasharray:5 4}.bound circle{display:none}
.grid{stroke:#8884;stroke-width:1}.tick{font-size:11px;text-anchor:middle;fill:#888}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.15em .7em;text-align:right;border-bottom:1px solid #8884}
td:first-child,th:first-child{text-align:left}.least{font-weight:bold}
@media(prefers-color-scheme:dark){body{background:#16181b;color:#ddd}}
</style></head><body>
)";

void add_row(std::ostream& out, const Comparison& comparison, const ComparedCurve& curve, const std::vector<double>& least) {
  out << "<tr><td>" << escaped(curve.name) << "</td>";
  for (std::size_t b = 0; b < comparison.bits.size(); ++b) {
    const ComparedPoint* const point = comparison.at(curve, b);
    out << (point && point->error == least[b] ? "<td class='least'" : "<td");
    if (point) out << " title='" << escaped(point->spec) << ", " << short_number(point->bits) << " bits'>" << short_number(point->error);
    else out << '>';
    out << "</td>";
  }
  out << "</tr>";
}

}  // namespace

std::string comparison_page(const Comparison& comparison, const std::string& title) {
  const Axes axes = axes_of(comparison);
  std::ostringstream out;
  out << kHead << "<h1>" << escaped(title) << "</h1><p>What compressors lose of " << with_commas(comparison.elements)
      << " elements in one exchange, as a share of the energy, over the bits that a worker sends. Dashed: what no code of Gaussian entries "
         "goes below, of one scale, or of known scales of blocks of "
      << kBoundBlock << ". A line under the pointer becomes thick; cells of the table tell their specs.</p><svg viewBox='0 0 " << Axes::kWidth
      << ' ' << Axes::kHeight << "' role='img'><title>Error over bits</title>";
  add_grid(out, axes, comparison.bits);
  const auto bound = [&](const std::vector<double>& errors, const char* name) {
    Points points;
    for (std::size_t b = 0; b < errors.size(); ++b) points.emplace_back(comparison.bits[b], errors[b]);
    add_line(out, axes, points, name, "class='bound' color='#888'");
  };
  bound(comparison.gaussian, "one scale");
  bound(comparison.blocks, "blocks' scales");
  for (std::size_t c = 0; c < comparison.curves.size(); ++c) {
    Points points;
    for (const ComparedPoint& point : comparison.curves[c].points) points.emplace_back(point.bits, point.error);
    add_line(out, axes, points, comparison.curves[c].name, std::string("color='") + kColours[c % kColours.size()] + "'");
  }
  out << "</svg><table><tr><th>error at bits an entry</th>";
  for (const double bits : comparison.bits) out << "<th>" << short_number(bits) << "</th>";
  out << "</tr>";
  const std::vector<double> least = comparison.least();
  for (const ComparedCurve& curve : comparison.curves) add_row(out, comparison, curve, least);
  for (const auto& [name, errors] : {std::pair("bound: Gaussian", &comparison.gaussian), std::pair("bound: blocks' scales", &comparison.blocks)}) {
    out << "<tr><td>" << name << "</td>";
    for (const double error : *errors) out << "<td>" << short_number(error) << "</td>";
    out << "</tr>";
  }
  out << "</table></body></html>\n";
  return out.str();
}

}  // namespace thinwire::tool
