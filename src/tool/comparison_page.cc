#include <algorithm>
#include <sstream>

#include "tool/comparison.h"
#include "tool/html.h"
#include "tool/log_chart.h"
#include "tool/table.h"

namespace thinwire::tool {
namespace {

constexpr double kMargin = 1.3;

LogChart::Range errors_shown(const Comparison& comparison, const LogChart::Range& bits) {
  LogChart::Range errors{0.5, 1.5};
  for (const ComparedCurve& curve : comparison.curves)
    for (const ComparedPoint& point : curve.points)
      if (point.error > 0 && point.bits > bits.least && point.bits < bits.most) errors.least = std::min(errors.least, point.error / kMargin);
  errors.least = std::max(errors.least, 1e-8);
  return errors;
}

std::string picture(const Comparison& comparison) {
  const LogChart::Range all_bits{comparison.bits.front() / kMargin, comparison.bits.back() * kMargin}, errors = errors_shown(comparison, all_bits);
  LogChart chart(all_bits, errors);
  LogChart::Ticks at_bits, at_errors;
  for (const double bits : comparison.bits) at_bits.emplace_back(bits, short_number(bits));
  for (double error = 1; error >= errors.least; error /= 10) at_errors.emplace_back(error, short_number(error));
  chart.add_grid(at_bits, at_errors, "bits an entry");
  const auto bound = [&](const std::vector<double>& of, const char* name) {
    LogChart::Points points;
    for (std::size_t b = 0; b < of.size(); ++b) points.emplace_back(comparison.bits[b], of[b]);
    chart.add_line(points, name, "class='bound' color='#888'");
  };
  bound(comparison.gaussian, "one scale");
  bound(comparison.blocks, "blocks' scales");
  for (std::size_t c = 0; c < comparison.curves.size(); ++c) {
    LogChart::Points points;
    for (const ComparedPoint& point : comparison.curves[c].points) points.emplace_back(point.bits, point.error);
    chart.add_line(points, comparison.curves[c].name, line_colour(c));
  }
  return chart.svg("Error over bits");
}

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
  std::ostringstream out;
  out << chart_page_head("Compressors compared") << "<h1>" << escaped(title) << "</h1><p>What compressors lose of " << with_commas(comparison.elements)
      << " elements in one exchange, as a share of the energy, over the bits that a worker sends. Dashed: what no code of Gaussian entries "
         "goes below, of one scale, or of known scales of blocks of "
      << kBoundBlock << ". A line under the pointer becomes thick; cells of the table tell their specs.</p>" << picture(comparison);
  out << "<table><tr><th>error at bits an entry</th>";
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
