#include "tool/text_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "thinwire/errors.h"

namespace thinwire::tool {

std::string read_text(const std::filesystem::path& path) {
  constexpr std::uintmax_t kLargest = 64u << 20;
  std::error_code problem;
  if (!std::filesystem::is_regular_file(path, problem))
    throw Error(path.string() + ": " + (problem ? problem.message() : "is not a file"));
  const std::uintmax_t bytes = std::filesystem::file_size(path, problem);
  if (bytes > kLargest) throw Error(path.string() + ": is larger than the 64 MiB that are read of a JSON file");
  std::string text(bytes, '\0');
  std::ifstream stream(path, std::ios::binary);
  if (!stream.read(text.data(), static_cast<std::streamsize>(bytes)))
    throw Error(path.string() + ": cannot be read: " + std::strerror(errno));
  return text;
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream stream(path, std::ios::binary);
  stream << text;
  stream.close();
  if (!stream) throw Error(path.string() + ": cannot be written: " + std::strerror(errno));
}

}  // namespace thinwire::tool
