#include "tool/rules_json.h"

#include <nlohmann/json.hpp>

#include "thinwire/errors.h"
#include "tool/text_file.h"

namespace thinwire::tool {
namespace {

constexpr const char* kForm = R"(rules are a JSON object of patterns and specs, like {"*.bias": "none"})";

std::vector<Rule> parse_object(const std::string& text, const std::string& name) {
  const auto document = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) throw ArgumentError(name + ": is not a JSON object; " + kForm);
  std::vector<Rule> rules;
  for (const auto& [pattern, spec] : document.items()) {
    if (!spec.is_string()) throw ArgumentError(name + ": the spec of '" + pattern + "' is not a string; " + kForm);
    rules.push_back({pattern, spec.get<std::string>()});
  }
  return rules;
}

}  // namespace

std::vector<Rule> parse_rules(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos) throw ArgumentError(std::string("--rules: is empty; ") + kForm);
  if (text[first] == '{') return parse_object(text, "--rules");
  const std::string path = text[first] == '@' ? text.substr(first + 1) : text;
  return parse_object(read_text(path), path);
}

}  // namespace thinwire::tool
