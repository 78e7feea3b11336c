#include "thinwire/spec.h"

#include <algorithm>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::string_view kForm = "; the form is name[:key=value,...], for example casq:bits=2";

[[noreturn]] void refuse(std::string_view text, const std::string& reason) {
  throw ArgumentError("compressor spec '" + std::string(text) + "': " + reason + std::string(kForm));
}

bool is_word(std::string_view word, std::string_view extra) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [&](unsigned char c) {
    return (c < 128 && std::isalnum(c)) || extra.find(static_cast<char>(c)) != std::string_view::npos;
  });
}

// Cuts the part of `rest` before the first `separator` off and returns it.
std::string_view cut(std::string_view& rest, char separator) {
  const std::size_t end = rest.find(separator);
  const std::string_view part = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return part;
}

void parse_values(std::string_view text, std::string_view values, SpecStage& stage) {
  for (bool more = true; more;) {
    more = values.find(',') != std::string_view::npos;
    std::string_view value = cut(values, ',');
    const bool has_equals = value.find('=') != std::string_view::npos;
    const std::string key(cut(value, '='));
    if (!has_equals || !is_word(key, "_-")) refuse(text, "expected key=value after ':' and ','");
    if (!is_word(value, "_-.+")) refuse(text, "'" + key + "' has no proper value");
    for (const auto& [earlier, unused] : stage.values)
      if (earlier == key) refuse(text, "'" + key + "' is given twice");
    stage.values.emplace_back(key, value);
  }
}

SpecStage parse_stage(std::string_view text, std::string_view part) {
  const bool has_values = part.find(':') != std::string_view::npos;
  SpecStage stage;
  stage.name = cut(part, ':');
  if (!is_word(stage.name, "_-")) refuse(text, stage.name.empty() ? "a name is missing" : "'" + stage.name + "' is no name");
  if (has_values) parse_values(text, part, stage);
  return stage;
}

}  // namespace

Spec Spec::parse(std::string_view text) {
  Spec spec;
  std::string_view rest = text;
  for (bool more = true; more;) {
    more = rest.find('/') != std::string_view::npos;
    spec.stages.push_back(parse_stage(text, cut(rest, '/')));
  }
  return spec;
}

std::string Spec::text() const {
  std::string text;
  for (const SpecStage& stage : stages) {
    if (!text.empty()) text += '/';
    text += stage.name;
    char separator = ':';
    for (const auto& [key, value] : stage.values) {
      text += separator + key + '=' + value;
      separator = ',';
    }
  }
  return text;
}

}  // namespace thinwire
