#pragma once

#include <filesystem>
#include <string>

namespace thinwire::tool {

// A text file's content. Throws Error if it cannot be read or is larger than 64 MiB.
std::string read_text(const std::filesystem::path& path);

// Throws Error if it cannot be written.
void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace thinwire::tool
