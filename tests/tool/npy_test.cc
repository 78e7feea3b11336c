#include "tool/npy.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>

#include "expect_refused.h"
#include "temporary_folder.h"

namespace thinwire::tool {
namespace {

std::string float_bytes(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) + 0.5f;
  std::string bytes(count * sizeof(float), '\0');
  if (count > 0) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string file(const std::string& header, std::size_t values, int major = 1, int minor = 0) {
  std::string text = "\x93NUMPY";
  text += static_cast<char>(major);
  text += static_cast<char>(minor);
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) text += static_cast<char>(header.size() >> (8 * i));
  return text + header + float_bytes(values);
}

std::string header(const std::string& shape, const std::string& descr = "'<f4'", const std::string& fortran = "False") {
  return "{'descr': " + descr + ", 'fortran_order': " + fortran + ", 'shape': " + shape + ", }          \n";
}

NpyArray parse(const std::string& bytes) {
  std::istringstream stream(bytes);
  return read_npy(stream, bytes.size(), "g.npy");
}

void expect_file_refused(const std::string& bytes, std::initializer_list<std::string> parts) {
  expect_refused([&] { parse(bytes); }, parts);
  expect_refused([&] { parse(bytes); }, {"g.npy: "});
}

using Shape = std::vector<std::uint64_t>;

TEST(Npy, EveryVersionAndNumberOfDimensions) {
  for (const int major : {1, 2, 3}) {
    const NpyArray array = parse(file(header("(2, 3)"), 6, major));
    EXPECT_EQ(array.shape, (Shape{2, 3}));
    EXPECT_EQ(array.values, (std::vector<float>{0.5f, 1.5f, 2.5f, 3.5f, 4.5f, 5.5f}));
  }
  EXPECT_EQ(parse(file(header("()"), 1)).shape, Shape{});
  EXPECT_EQ(parse(file(header("(3,)"), 3)).shape, Shape{3});
  EXPECT_EQ(parse(file(header("(1, 2, 2)"), 4)).shape, (Shape{1, 2, 2}));
  EXPECT_EQ(parse(file(header("(4, 0)"), 0)).shape, (Shape{4, 0}));
}

TEST(Npy, TheDictionaryMayBeWrittenInOtherWays) {
  for (const char* text : {"{\"shape\":(2,3),\"fortran_order\":False,\"descr\":\"<f4\"}",
                           " { 'fortran_order' : False ,\n 'shape' : ( 2 , 3 , ) , 'descr' : '<f4' } \n"})
    EXPECT_EQ(parse(file(text, 6)).shape, (Shape{2, 3})) << text;
}

TEST(Npy, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  for (const Shape& shape : {Shape{}, Shape{5}, Shape{2, 3}, Shape{3, 0}, Shape{1, 2, 2}}) {
    std::uint64_t elements = 1;
    for (const std::uint64_t dimension : shape) elements *= dimension;
    const std::vector<float> values(elements, 1.25f);
    write_npy(folder.path("a.npy"), shape, values);
    const NpyArray array = read_npy(folder.path("a.npy"));
    EXPECT_EQ(array.shape, shape);
    EXPECT_EQ(array.values, values);
    EXPECT_EQ((std::filesystem::file_size(folder.path("a.npy")) - 4 * elements) % 64, 0u);  // as the format asks
  }
}

TEST(Npy, OtherKindsOfNumbers) {
  expect_file_refused(file(header("(2,)", "'<f8'"), 4), {"'<f8'", "only little-endian float32", "astype('<f4')"});
  expect_file_refused(file(header("(2,)", "'>f4'"), 2), {"'>f4'", "little-endian"});
  expect_file_refused(file(header("(2,)", "'|O'"), 2), {"'|O'"});
  expect_file_refused(file(header("(2,)", "[('a', '<f4')]"), 2), {"records", "array['field']"});
  expect_file_refused(file(header("(2, 3)", "'<f4'", "True"), 6), {"Fortran order", "ascontiguousarray"});
}

TEST(Npy, OtherFiles) {
  expect_file_refused("", {"does not begin like a .npy file", "numpy.save"});
  expect_file_refused("hello, world", {"does not begin like a .npy file"});
  expect_file_refused("PK\3\4 and so on", {".npz archive", "numpy.save"});
  expect_file_refused(file(header("(2,)"), 2, 4), {"version 4.0", "1.0, 2.0 and 3.0"});
  expect_file_refused(file(header("(2,)"), 2, 1, 1), {"version 1.1"});
}

TEST(Npy, FilesThatEndTooEarlyOrTooLate) {
  const std::string whole = file(header("(2, 3)"), 6);
  for (std::size_t length = 0; length < whole.size(); ++length) EXPECT_THROW(parse(whole.substr(0, length)), Error);
  expect_file_refused(whole.substr(0, 20), {"cut off within its header"});
  expect_file_refused(whole.substr(0, whole.size() - 1), {"23 bytes", "(2, 3)", "4 times 6", "cut off"});
  expect_file_refused(whole + "x", {"25 bytes", "damaged"});
}

TEST(Npy, HeadersThatLie) {
  expect_file_refused(file(header("(18446744073709551615, 2)"), 2), {"more than 64 bits"});
  expect_file_refused(file(header("(4611686018427387904,)"), 0), {"4 times 4611686018427387904"});
  expect_file_refused(file(header("(99999999999999999999999,)"), 2), {"too large for 64 bits"});
  expect_file_refused(file(header("(1000000000000,)"), 2), {"8 bytes of values", "cut off"});  // and allocates nothing
  expect_file_refused(file(header("(-2,)"), 2), {"whole numbers"});
  expect_file_refused(file(header("(2.0,)"), 2), {"',' or ')'"});
  expect_file_refused(file("{'descr': '<f4', 'shape': (2,)}", 2), {"missing"});
  expect_file_refused(file("{'descr': '<f4', 'descr': '<f4'}", 2), {"'descr'", "twice"});
  expect_file_refused(file("{'evil': '<f4'}", 2), {"'evil'", "unknown"});
  expect_file_refused(file("{'descr: <f4", 2), {"does not end"});
  expect_file_refused(file(header("(2,)") + "rubbish", 2), {"something follows"});
  expect_file_refused(file(header("(2,)", "'<f4'", "Maybe"), 2), {"True or False"});
  expect_file_refused(file("", 2), {"'{' is missing"});

  std::string long_header = file(std::string(70000, ' '), 0, 2);
  expect_file_refused(long_header, {"header of 70000 bytes", "65536"});
  std::string many = "(";
  for (int i = 0; i < 100; ++i) many += "1,";
  expect_file_refused(file(header(many + ")"), 1), {"more than 64 dimensions"});
}

TEST(Npy, MissingFilesAndFolders) {
  const TemporaryFolder folder;
  expect_refused([&] { read_npy(folder.path("none.npy")); }, {"none.npy", "No such file"});
  expect_refused([&] { read_npy(folder.path("")); }, {"is not a file"});
  expect_refused([&] { write_npy(folder.path("no/such/a.npy"), {0}, {}); }, {"cannot be written", "No such file"});
}

// Whatever the bytes are: an array that fits them, or an error.
TEST(Npy, DamagedFilesAreRefusedOrReadWhole) {
  std::mt19937 random(3);
  for (const int major : {1, 2, 3}) {
    const std::string whole = file(header("(2, 3)"), 6, major);
    for (int i = 0; i < 20000; ++i) {
      std::string damaged = whole;
      for (auto changes = 1 + random() % 4; changes > 0; --changes) {
        const std::size_t at = random() % (whole.size() - 24);
        switch (random() % 4) {
          case 0:
            damaged[at] = static_cast<char>(random());
            break;
          case 1:
            damaged[at] = "{}()',:<f4 0123456789TF"[random() % 23];
            break;
          case 2:
            damaged.erase(at, 1 + random() % 8);
            break;
          default:
            damaged.insert(at, whole.substr(random() % whole.size(), random() % 16));
        }
      }
      try {
        const NpyArray array = parse(damaged);
        std::uint64_t elements = 1;
        for (const std::uint64_t dimension : array.shape) elements *= dimension;
        ASSERT_EQ(array.values.size(), elements);
        ASSERT_LE(4 * elements, damaged.size());
      } catch (const Error&) {
      }
    }
  }
}

TEST(Npy, ShapesAsPythonWritesThem) {
  EXPECT_EQ(shape_text({}), "()");
  EXPECT_EQ(shape_text({4}), "(4,)");
  EXPECT_EQ(shape_text({4, 25}), "(4, 25)");
}

}  // namespace
}  // namespace thinwire::tool
