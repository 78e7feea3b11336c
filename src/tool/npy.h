// NumPy's .npy files, as far as gradients need them: little-endian float32 in C order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <span>
#include <string>
#include <vector>

namespace thinwire::tool {

struct NpyArray {
  std::vector<std::uint64_t> shape;
  std::vector<float> values;  // in C order
};

// Reads format versions 1.0, 2.0 and 3.0. The file's size must be exactly what its header says; nothing is allocated
// before that is known. Throws Error, which names what was found, what is allowed and what to do.
NpyArray read_npy(const std::filesystem::path& path);

// The same from a stream that holds `bytes` bytes; `name` stands for it in errors.
NpyArray read_npy(std::istream& stream, std::uint64_t bytes, const std::string& name);

// Writes version 1.0. Throws Error.
void write_npy(const std::filesystem::path& path, const std::vector<std::uint64_t>& shape,
               std::span<const float> values);

// For people, as Python writes it: "(4, 25)", "(4,)".
std::string shape_text(const std::vector<std::uint64_t>& shape);

}  // namespace thinwire::tool
