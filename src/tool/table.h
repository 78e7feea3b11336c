// Tables for people.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

namespace thinwire::tool {

// The widest line the tool prints.
inline constexpr std::size_t kLineWidth = 100;

struct Column {
  std::string heading;
  std::size_t widest;    // longer cells are broken into lines, at spaces where there are any
  bool numbers = false;  // aligned at the right
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell for each column.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  void print(std::ostream& out) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// `text` in lines of at most `width` characters; new lines in it stay.
std::vector<std::string> wrap(const std::string& text, std::size_t width);

// Characters of a UTF-8 string.
std::size_t text_width(const std::string& text);

// "25,600,000", "0.163", "1.2e-07"; what is not finite: "-".
std::string with_commas(std::uint64_t number);
std::string short_number(double number);

// "6.41 MB", in powers of a thousand.
std::string short_bytes(double bytes);

}  // namespace thinwire::tool
