#include "compressors/shared/spec_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

template <class T>
bool parse(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// The shortest text that is read as this number.
std::string shortest(double number) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, number).ptr);
}

template <class T>
bool in_range(const std::string& text, const SpecParameter& parameter) {
  T value{};
  return parse(text, value) && static_cast<double>(value) >= parameter.minimum &&
         static_cast<double>(value) <= parameter.maximum;
}

bool is_allowed(const std::string& text, const SpecParameter& parameter) {
  switch (parameter.kind) {
    case SpecParameter::Kind::kInteger:
      return in_range<std::int64_t>(text, parameter);
    case SpecParameter::Kind::kReal:
      return in_range<double>(text, parameter);
    default:
      return std::find(parameter.choices.begin(), parameter.choices.end(), text) != parameter.choices.end();
  }
}

std::string names_of(const CompressorInfo& info) {
  std::string names;
  for (const SpecParameter& parameter : info.parameters) names += (names.empty() ? "" : ", ") + parameter.name;
  return names.empty() ? "it has no parameters" : "it has " + names;
}

void refuse_unknown_keys(const SpecStage& stage, const CompressorInfo& info) {
  for (const auto& [key, value] : stage.values) {
    const auto known = [&name = key](const SpecParameter& parameter) { return parameter.name == name; };
    if (std::none_of(info.parameters.begin(), info.parameters.end(), known))
      throw ArgumentError("compressor '" + info.name + "' has no parameter '" + key + "'; " + names_of(info));
  }
}

// One text for equal numbers, because workers compare texts.
std::string canonical_text(const std::string& text, SpecParameter::Kind kind) {
  if (std::int64_t number = 0; kind == SpecParameter::Kind::kInteger && parse(text, number)) return std::to_string(number);
  if (double number = 0; kind == SpecParameter::Kind::kReal && parse(text, number)) return shortest(number + 0.0);  // no -0
  return text;
}

const std::string* given(const SpecStage& stage, const std::string& key) {
  for (const auto& [name, value] : stage.values)
    if (name == key) return &value;
  return nullptr;
}

}  // namespace

std::string SpecParameter::allowed() const {
  if (kind == Kind::kChoice) {
    std::string text;
    for (const std::string& choice : choices) text += (text.empty() ? "" : " or ") + choice;
    return text;
  }
  const auto number = [](double value) {
    const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
    return whole ? std::to_string(static_cast<std::int64_t>(value)) : shortest(value);
  };
  return (kind == Kind::kInteger ? "a whole number from " : "a number from ") + number(minimum) + " to " + number(maximum);
}

SpecValues::SpecValues(const SpecStage& stage, const CompressorInfo& info) : compressor_(info.name) {
  refuse_unknown_keys(stage, info);
  for (const SpecParameter& parameter : info.parameters) {
    const std::string* const text = given(stage, parameter.name);
    if (text && !is_allowed(*text, parameter))
      throw ArgumentError("compressor '" + info.name + "': " + parameter.name + "=" + *text + " is not allowed; it takes " +
                          parameter.allowed());
    values_.emplace_back(parameter.name, canonical_text(text ? *text : parameter.default_value, parameter.kind));
  }
}

bool SpecValues::has(std::string_view name) const {
  return std::any_of(values_.begin(), values_.end(), [&](const auto& value) { return value.first == name; });
}

const std::string& SpecValues::choice(std::string_view name) const {
  for (const auto& [key, value] : values_)
    if (key == name) return value;
  throw std::logic_error("thinwire: compressor '" + compressor_ + "' declares no parameter '" + std::string(name) + "'");
}

std::int64_t SpecValues::integer(std::string_view name) const {
  std::int64_t value = 0;
  parse(choice(name), value);
  return value;
}

double SpecValues::real(std::string_view name) const {
  double value = 0;
  parse(choice(name), value);
  return value;
}

}  // namespace thinwire
