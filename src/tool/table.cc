#include "tool/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <ostream>

namespace thinwire::tool {
namespace {

constexpr std::size_t kGap = 2;

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

// Bytes of the first `characters` characters.
std::size_t bytes_of_prefix(const std::string& text, std::size_t characters) {
  std::size_t at = 0;
  for (; at < text.size(); ++at)
    if (begins_character(text[at]) && characters-- == 0) break;
  return at;
}

std::string format(const char* pattern, double number) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), pattern, number);
  return text.data();
}

void print_line(std::ostream& out, const std::vector<Column>& columns, const std::vector<std::size_t>& widths,
                const std::vector<std::string>& cells) {
  std::string line;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const std::string padding(widths[c] - text_width(cells[c]), ' ');
    if (c > 0) line.append(kGap, ' ');
    line += columns[c].numbers ? padding + cells[c] : cells[c] + padding;
  }
  out << line.substr(0, line.find_last_not_of(' ') + 1) << '\n';
}

}  // namespace

std::size_t text_width(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_character));
}

std::vector<std::string> wrap(const std::string& text, std::size_t width) {
  if (const std::size_t end = text.find('\n'); end != std::string::npos) {
    std::vector<std::string> lines = wrap(text.substr(0, end), width);
    std::ranges::move(wrap(text.substr(end + 1), width), std::back_inserter(lines));
    return lines;
  }
  std::vector<std::string> lines;
  std::string rest = text;
  while (text_width(rest) > width) {
    const std::size_t most = bytes_of_prefix(rest, width);
    const std::size_t space = rest.rfind(' ', most);
    const bool at_space = space != std::string::npos && space > 0;
    lines.push_back(rest.substr(0, at_space ? space : most));
    rest = rest.substr(at_space ? space + 1 : most);
  }
  lines.push_back(rest);
  return lines;
}

void Table::print(std::ostream& out) const {
  const std::size_t count = columns_.size();
  std::vector<std::size_t> widths(count);
  std::vector<std::string> headings(count);
  for (std::size_t c = 0; c < count; ++c) {
    headings[c] = columns_[c].heading;
    widths[c] = text_width(headings[c]);
    for (const auto& row : rows_)
      for (const std::string& line : wrap(row[c], columns_[c].widest))
        widths[c] = std::max(widths[c], text_width(line));
  }
  print_line(out, columns_, widths, headings);
  for (std::size_t c = 0; c < count; ++c) headings[c] = std::string(widths[c], '-');
  print_line(out, columns_, widths, headings);

  for (const auto& row : rows_) {
    std::vector<std::vector<std::string>> cells(count);
    std::size_t lines = 0;
    for (std::size_t c = 0; c < count; ++c) {
      cells[c] = wrap(row[c], columns_[c].widest);
      lines = std::max(lines, cells[c].size());
    }
    for (std::size_t l = 0; l < lines; ++l) {
      std::vector<std::string> line(count);
      for (std::size_t c = 0; c < count; ++c)
        if (l < cells[c].size()) line[c] = cells[c][l];
      print_line(out, columns_, widths, line);
    }
  }
}

std::string with_commas(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

std::string short_number(double number) { return std::isfinite(number) ? format("%.3g", number) : "-"; }

std::string short_bytes(double bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; bytes >= 999.5 && unit + 1 < kUnits.size(); ++unit) bytes /= 1000;
  return short_number(bytes) + ' ' + kUnits[unit];
}

}  // namespace thinwire::tool
