#include "tool/rules_json.h"

#include <set>

#include <nlohmann/json.hpp>

#include "thinwire/errors.h"
#include "tool/text_file.h"

namespace thinwire::tool {
namespace {

constexpr const char* kForm = R"(rules are a JSON object of patterns and specs, like {"*.bias": "none"})";

// The parsed document would hold only one of the two.
void refuse_duplicates(const std::string& text, const std::string& name) {
  using Json = nlohmann::ordered_json;
  std::set<std::string> patterns;
  const auto see_key = [&](int /*depth*/, Json::parse_event_t event, const Json& key) {
    if (event == Json::parse_event_t::key && !patterns.insert(key.get<std::string>()).second)
      throw ArgumentError(name + ": the pattern '" + key.get<std::string>() + "' occurs twice; keep one of the two");
    return true;
  };
  const auto document = Json::parse(text, see_key, /*allow_exceptions=*/false);
}

std::vector<Rule> parse_object(const std::string& text, const std::string& name) {
  refuse_duplicates(text, name);
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
