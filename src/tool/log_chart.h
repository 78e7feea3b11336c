// A picture of lines over two logarithmic axes, as SVG, and the page that it stands on.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace thinwire::tool {

class LogChart {
 public:
  struct Range {
    double least, most;
  };
  enum class LabelAt { kEnd, kBeginning };  // of a line, where its name stands
  using Points = std::vector<std::pair<double, double>>;
  using Ticks = std::vector<std::pair<double, std::string>>;

  LogChart(Range x, Range y, LabelAt label_at = LabelAt::kEnd) : x_(x), y_(y), label_at_(label_at) {}

  void add_grid(const Ticks& x, const Ticks& y, const std::string& below);
  // The points that lie within both ranges. style: attributes; marks: a dot at each.
  void add_line(const Points& points, const std::string& name, const std::string& style, bool marks = true);
  // One from top to bottom.
  void add_place(double x, const std::string& name);

  std::string svg(const std::string& title) const;

 private:
  struct Line {
    Points points;  // of the picture
    std::string name, style;
    bool marks;
  };
  static constexpr double kWidth = 900, kHeight = 560, kNames = 190, kTicks = 60, kTop = 10, kBottom = 40;
  double left() const { return label_at_ == LabelAt::kEnd ? kTicks : kTicks + kNames; }
  double right() const { return label_at_ == LabelAt::kEnd ? kWidth - kNames : kWidth - 40; }
  double across(double x) const;
  double down(double y) const;
  // Where names stand: next to their lines, but not on each other.
  std::vector<double> places_of_names() const;

  Range x_, y_;
  LabelAt label_at_;
  std::string grid_;
  std::vector<Line> lines_;
};

// Of lines, one after another, as a style.
std::string line_colour(std::size_t number);

// Everything up to the page's first heading.
std::string chart_page_head(const std::string& title);

}  // namespace thinwire::tool
