#pragma once

#include <filesystem>
#include <string>

namespace thinwire::tool {

// A text file's content. Throws Error if it cannot be read or is larger than 64 MiB.
std::string read_text(const std::filesystem::path& path);

}  // namespace thinwire::tool
