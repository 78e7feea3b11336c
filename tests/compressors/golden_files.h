// Files of messages that were written once: how tests read them, spoil them, and write new ones.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reducer/reseal.h"

namespace thinwire::testing {

using Bytes = std::vector<char>;

// A good file with some bytes changed, which must be refused. The message changed is sealed again, unless its checksum is what
// was changed.
struct Bad {
  std::string name;
  std::string good;
  std::size_t position;
  std::vector<unsigned char> bytes;
};

inline std::string golden_path(const std::string& name) { return THINWIRE_GOLDEN "/" + name; }
inline bool is_missing(const std::string& name) { return !std::filesystem::exists(golden_path(name)); }

inline Bytes read_file(const std::string& name) {
  std::ifstream file(golden_path(name), std::ios::binary);
  EXPECT_TRUE(file) << golden_path(name);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& name, const Bytes& bytes) {
  std::ofstream(golden_path(name), std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline Bytes bytes_of(const std::vector<float>& values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// `workers`: whose messages lie in the file, one behind the other.
inline Bytes spoilt(Bytes file, const Bad& bad, std::size_t workers) {
  spoil_and_reseal(std::as_writable_bytes(std::span(file)), workers, [&](std::span<std::byte>) {
    for (std::size_t i = 0; i < bad.bytes.size(); ++i) file.at(bad.position + i) = static_cast<char>(bad.bytes[i]);
  });
  return file;
}

template <class Good>
const Good& file_named(const std::string& name, const std::vector<Good>& files) {
  for (const Good& file : files)
    if (file.name == name) return file;
  throw std::logic_error(name);
}

// Only what is not there yet: what was written once stays.
inline void write_missing(const std::vector<Bad>& bad_files, std::size_t workers) {
  for (const Bad& bad : bad_files)
    if (is_missing(bad.name + ".bin")) write_file(bad.name + ".bin", spoilt(read_file(bad.good + ".bin"), bad, workers));
}

// The message of a bad file, which is its good one spoilt as it says.
inline Bytes read_bad(const Bad& bad, std::size_t workers) {
  const Bytes message = read_file(bad.name + ".bin"), good = read_file(bad.good + ".bin");
  EXPECT_EQ(message, spoilt(good, bad, workers)) << bad.name;
  EXPECT_NE(message, good) << bad.name;
  return message;
}

// Every file whose name is_mine belongs to a good or a bad one.
template <class IsMine, class Good>
void expect_no_other_files(const IsMine& is_mine, const std::vector<Good>& good_files, const std::vector<Bad>& bad_files) {
  std::set<std::string> known;
  for (const Good& good : good_files) known.insert({good.name + ".bin", good.name + "_mean.f32"});
  for (const Bad& bad : bad_files) known.insert(bad.name + ".bin");
  for (const auto& file : std::filesystem::directory_iterator(THINWIRE_GOLDEN)) {
    const std::string name = file.path().filename().string();
    EXPECT_TRUE(!is_mine(name) || known.contains(name)) << name;
  }
}

}  // namespace thinwire::testing
