#include "tool/layout_json.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include <nlohmann/json.hpp>

#include "thinwire/errors.h"
#include "tool/text_file.h"

namespace thinwire::tool {
namespace {

using nlohmann::json;

constexpr const char* kForm = "a layout is a JSON list of objects like "
                              R"({"name": "conv1.weight", "shape": [64, 3, 7, 7], "offset": 0})";

[[noreturn]] void refuse(const std::string& name, const std::string& what) { throw Error(name + ": " + what); }

struct Placed {
  Parameter parameter;
  std::uint64_t offset = 0;
  std::uint64_t end = 0;
};

bool is_size(const json& value) {
  return value.is_number_unsigned() && value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max();
}

Placed placed(const json& entry, std::size_t index, const std::string& name) {
  const std::string where = "entry " + std::to_string(index);
  if (!entry.is_object()) refuse(name, where + " is not an object; " + kForm);
  const auto member = [&](const char* key) -> const json& {
    if (!entry.contains(key)) refuse(name, where + " has no \"" + key + "\"; " + kForm);
    return entry[key];
  };
  const json& title = member("name");
  const json& shape = member("shape");
  const json& offset = member("offset");
  if (!title.is_string()) refuse(name, where + ": \"name\" must be a string");
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_size))
    refuse(name, where + ": \"shape\" must be a list of whole numbers from 0 on");
  if (!is_size(offset)) refuse(name, where + ": \"offset\" must be a whole number from 0 on, counted in elements");

  Placed result{{title.get<std::string>(), shape.get<std::vector<std::int64_t>>()}, offset.get<std::uint64_t>()};
  std::uint64_t elements = 1;
  for (const std::int64_t dimension : result.parameter.shape)
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(dimension), &elements))
      refuse(name, where + ": the shape of '" + result.parameter.name + "' has more elements than 64 bits can count");
  if (__builtin_add_overflow(result.offset, elements, &result.end))
    refuse(name, where + ": '" + result.parameter.name + "' ends beyond what 64 bits can count");
  return result;
}

void check_tiling(const std::vector<Placed>& all, std::optional<std::uint64_t> elements, const std::string& name) {
  std::uint64_t end = 0;
  for (const Placed& next : all) {
    const std::string title = "'" + next.parameter.name + "' begins at " + std::to_string(next.offset);
    const std::string before = " but what lies before it ends at " + std::to_string(end);
    if (next.offset < end) refuse(name, title + before + ": parameters must not overlap");
    if (next.offset > end) refuse(name, title + before + ": every element must belong to a parameter");
    end = next.end;
  }
  if (elements && end != *elements)
    refuse(name, "describes " + std::to_string(end) + " elements, and the gradient of a worker has " +
                     std::to_string(*elements));
}

}  // namespace

Layout parse_layout(const std::string& text, std::optional<std::uint64_t> elements, const std::string& name) {
  const json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_array())
    refuse(name, std::string(document.is_discarded() ? "is not JSON; " : "is not a list; ") + kForm);
  std::vector<Placed> all;
  for (std::size_t i = 0; i < document.size(); ++i) all.push_back(placed(document[i], i, name));
  // An empty parameter stands before the one that begins at the same place.
  std::ranges::stable_sort(all, {}, [](const Placed& p) { return std::tuple(p.offset, p.end); });
  check_tiling(all, elements, name);

  std::vector<Parameter> parameters;
  for (Placed& next : all) parameters.push_back(std::move(next.parameter));
  try {
    return Layout(std::move(parameters));
  } catch (const ArgumentError& error) {
    refuse(name, error.what());
  }
}

Layout read_layout(const std::filesystem::path& path, std::optional<std::uint64_t> elements) {
  return parse_layout(read_text(path), elements, path.string());
}

}  // namespace thinwire::tool
