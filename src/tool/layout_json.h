// Layouts as JSON: [{"name": "conv1.weight", "shape": [64, 3, 7, 7], "offset": 0}, ...]
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "thinwire/layout.h"

namespace thinwire::tool {

// Parameters sorted by offset. They must tile [0, elements) exactly, or without `elements` whatever they describe; extra keys
// are ignored. Throws Error.
Layout read_layout(const std::filesystem::path& path, std::optional<std::uint64_t> elements);

// The same from text; `name` stands for it in errors.
Layout parse_layout(const std::string& text, std::optional<std::uint64_t> elements, const std::string& name);

}  // namespace thinwire::tool
