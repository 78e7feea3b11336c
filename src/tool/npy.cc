#include "tool/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>

#include "thinwire/errors.h"

namespace thinwire::tool {
namespace {

static_assert(std::endian::native == std::endian::little, "values are read and written as they lie in memory");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kLongestHeader = 65536;  // NumPy itself writes about a hundred bytes
constexpr std::size_t kMostDimensions = 64;    // as NumPy 2

[[noreturn]] void refuse(const std::string& name, const std::string& what) { throw Error(name + ": " + what); }

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::uint64_t> shape;
};

// The header is a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (4, 25), }
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Header parse() {
    std::optional<std::string> descr;
    std::optional<bool> fortran_order;
    std::optional<std::vector<std::uint64_t>> shape;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !descr) descr = dtype();
      else if (key == "fortran_order" && !fortran_order) fortran_order = boolean();
      else if (key == "shape" && !shape) shape = integers();
      else fail("the key '" + key + "' is unknown or there twice");
      if (!accept(',') && peek() != '}') fail("',' or '}' is missing");
    }
    if (peek() != '\0') fail("something follows the dictionary");
    if (!descr || !fortran_order || !shape) fail("'descr', 'fortran_order' or 'shape' is missing");
    return {*descr, *fortran_order, *shape};
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    refuse(name_, "the header of this .npy file is damaged, at byte " + std::to_string(at_) + " of it: " + what +
                      "; write the file again with numpy.save");
  }

  // The next character that is not white space; 0 at the end.
  char peek() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("'") + c + "' is missing");
  }
  bool accept_word(std::string_view word) {
    peek();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  std::string string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail("a string is missing");
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("a string does not end");
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    const auto is_odd = [](char c) { return c < ' ' || c > '~' || c == '\\'; };
    if (std::ranges::any_of(inside, is_odd)) fail("a string is damaged");
    at_ = end + 1;
    return std::string(inside);
  }

  std::string dtype() {
    if (peek() == '[')
      refuse(name_, "holds records with several fields; only float32 ('<f4') is read; save one field of it with "
                    "numpy.save(path, array['field'].astype('<f4'))");
    return string();
  }

  bool boolean() {
    if (accept_word("True")) return true;
    if (accept_word("False")) return false;
    fail("'fortran_order' must be True or False");
  }

  std::vector<std::uint64_t> integers() {
    std::vector<std::uint64_t> values;
    expect('(');
    while (!accept(')')) {
      if (values.size() == kMostDimensions)
        fail("the shape has more than " + std::to_string(kMostDimensions) + " dimensions");
      values.push_back(integer());
      if (!accept(',') && peek() != ')') fail("',' or ')' is missing");
    }
    return values;
  }

  std::uint64_t integer() {
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    if (!is_digit(peek())) fail("the shape must consist of whole numbers from 0 on");
    std::uint64_t value = 0;
    for (; at_ < text_.size() && is_digit(text_[at_]); ++at_)
      if (__builtin_mul_overflow(value, 10u, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value))
        fail("a dimension is too large for 64 bits");
    return value;
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
};

// Reads exactly what is asked for; `left` counts down what the stream still holds.
void read_exactly(std::istream& stream, std::uint64_t& left, std::span<char> bytes, const std::string& name) {
  if (bytes.size() > left) refuse(name, "is cut off within its header; write it again with numpy.save");
  if (!stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size())))
    refuse(name, "cannot be read to its end");
  left -= bytes.size();
}

std::string read_header_text(std::istream& stream, std::uint64_t& left, const std::string& name) {
  std::array<char, 8> start{};
  read_exactly(stream, left, std::span(start).first(std::min<std::uint64_t>(start.size(), left)), name);
  const std::string_view magic(start.data(), kMagic.size());
  if (magic.starts_with("PK"))
    refuse(name, "is an .npz archive, not a .npy file; take one array out with numpy.save(path, archive['key'])");
  if (magic != kMagic) refuse(name, "does not begin like a .npy file; write one with numpy.save(path, array)");
  const int major = start[6];
  const int minor = start[7];
  if (major < 1 || major > 3 || minor != 0)
    refuse(name, "has .npy version " + std::to_string(major) + "." + std::to_string(minor) +
                     "; 1.0, 2.0 and 3.0 are read; write it again with numpy.save");

  std::array<unsigned char, 4> length{};
  read_exactly(stream, left, {reinterpret_cast<char*>(length.data()), std::size_t{major == 1 ? 2u : 4u}}, name);
  const auto bytes = std::bit_cast<std::uint32_t>(length);
  if (bytes > kLongestHeader)
    refuse(name, "has a header of " + std::to_string(bytes) + " bytes; at most " + std::to_string(kLongestHeader) +
                     " are read; write it again with numpy.save");
  std::string text(bytes, '\0');
  read_exactly(stream, left, text, name);
  return text;
}

void check_kind(const Header& header, const std::string& name) {
  if (header.descr != "<f4")
    refuse(name, "holds numbers of type '" + header.descr +
                     "'; only little-endian float32 ('<f4') is read; save array.astype('<f4')");
  if (header.fortran_order)
    refuse(name, "is in Fortran order; only C order is read; save numpy.ascontiguousarray(array)");
}

// Elements of the shape, after checking that exactly so many are there.
std::uint64_t elements_there(const Header& header, std::uint64_t left, const std::string& name) {
  std::uint64_t elements = 1;
  std::uint64_t bytes = 0;
  for (const std::uint64_t dimension : header.shape)
    if (__builtin_mul_overflow(elements, dimension, &elements))
      refuse(name, "says its shape is " + shape_text(header.shape) + ", more than 64 bits can count; it is damaged");
  if (__builtin_mul_overflow(elements, sizeof(float), &bytes) || bytes != left)
    refuse(name, "has " + std::to_string(left) + " bytes of values where its shape " + shape_text(header.shape) +
                     " needs 4 times " + std::to_string(elements) + "; it is " + (bytes > left ? "cut off" : "damaged") +
                     ", write it again with numpy.save");
  return elements;
}

std::string header_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape_text(shape) + ", }";
  const std::size_t before = kMagic.size() + 4;  // magic, version, length
  const std::size_t whole = (before + text.size() + 1 + 63) / 64 * 64;
  text.append(whole - before - text.size() - 1, ' ');
  return text + '\n';
}

}  // namespace

NpyArray read_npy(std::istream& stream, std::uint64_t bytes, const std::string& name) {
  std::uint64_t left = bytes;
  const std::string text = read_header_text(stream, left, name);
  Header header = HeaderParser(text, name).parse();
  check_kind(header, name);
  std::vector<float> values(elements_there(header, left, name));
  read_exactly(stream, left, {reinterpret_cast<char*>(values.data()), values.size() * sizeof(float)}, name);
  return {std::move(header.shape), std::move(values)};
}

NpyArray read_npy(const std::filesystem::path& path) {
  std::error_code problem;
  if (!std::filesystem::is_regular_file(path, problem))
    refuse(path.string(), problem ? problem.message() : "is not a file; a .npy file is needed");
  const std::uint64_t bytes = std::filesystem::file_size(path, problem);
  std::ifstream stream(path, std::ios::binary);
  if (problem || !stream) refuse(path.string(), "cannot be opened for reading: " + std::string(std::strerror(errno)));
  return read_npy(stream, bytes, path.string());
}

void write_npy(const std::filesystem::path& path, const std::vector<std::uint64_t>& shape,
               std::span<const float> values) {
  const std::string text = header_text(shape);
  const auto length = static_cast<std::uint16_t>(text.size());
  std::ofstream stream(path, std::ios::binary);
  stream << kMagic << '\1' << '\0' << static_cast<char>(length & 255) << static_cast<char>(length >> 8) << text;
  stream.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size_bytes()));
  stream.close();
  if (!stream) refuse(path.string(), "cannot be written: " + std::string(std::strerror(errno)));
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

}  // namespace thinwire::tool
