// Messages of CASQ's wire format 1, as files: what was written once must be read for ever, and spoilt ones be refused.
// The encoder may change, so it is only held to messages that decode to the same floats. The files are of two parameters
// of 20 and 17 elements, the input is input() below, one worker. To write them anew, for a new format:
// THINWIRE_WRITE_GOLDEN=1 compressors_test --gtest_filter='CasqGolden.*'
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include <gtest/gtest.h>

#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

struct Good {
  std::string name;
  std::string spec;
  std::size_t bytes;  // by the formula of docs/wire_format.md
};
const std::vector<Good>& good_files() {
  static const std::vector<Good> files = {
      {"casq_v1", "casq:bits=2,feedback=off", 8 + 1 + 2 * 16 + 5 + 5},
      {"casq_v1_table", "casq:bits=2,table=0.2,feedback=off", 8 + 1 + 2 * 8 + (4 + 4 + 4 + 3) * 4 + 5 + 5},
      {"casq_v1_hash", "casq:bits=2,table=0.2,assign=hash,precision=bf16,feedback=off",
       8 + 1 + 2 * 8 + (4 + 4 + 4 + 3) * 2 + 5 + 5},
      {"casq_v1_block", "casq:bits=3,scope=block,precision=bf16,feedback=off", 8 + 1 + 2 * 8 * 2 + 2 * 2 + 8 + 7},
      {"casq_v1_8bits", "casq:bits=8,feedback=off", 8 + 1 + 2 * 256 * 4 + 20 + 17},
  };
  return files;
}

const Good& good_file(const std::string& name) {
  for (const Good& good : good_files())
    if (good.name == name) return good;
  throw std::logic_error(name);
}

// Positions: 8 bytes of header, 1 of bitmap, then the first parameter's code.
struct Bad {
  std::string name;
  std::string good;
  std::size_t position;
  std::vector<unsigned char> bytes;
};
const std::vector<Bad>& bad_files() {
  static const std::vector<Bad> files = {
      {"casq_v1_bad_wire_id", "casq_v1", 0, {17}},
      {"casq_v1_bad_version", "casq_v1", 1, {2}},
      {"casq_v1_bad_flags", "casq_v1", 2, {2}},
      {"casq_v1_bad_reserved", "casq_v1", 3, {1}},
      {"casq_v1_bad_elements", "casq_v1", 4, {36}},
      {"casq_v1_bad_mean", "casq_v1", 11, {0xc0, 0x7f}},            // the first mean is NaN
      {"casq_v1_bad_buckets", "casq_v1_table", 9, {0xff, 0xff}},    // more buckets than the table has
      {"casq_v1_bad_no_bucket", "casq_v1_table", 9, {0, 0, 6, 0, 1, 0, 1, 0}},  // 8 in all, but a cluster without any
      {"casq_v1_bad_entry", "casq_v1_hash", 17, {0x80, 0x7f}},      // an infinite mean, of 16 bits
      {"casq_v1_bad_scale", "casq_v1_block", 25, {0x80, 0xbf}},     // a scale of -1
      {"casq_v1_bad_scale_nan", "casq_v1_block", 25, {0xc0, 0x7f}},
  };
  return files;
}

const Layout& layout() {
  static const Layout instance({{"a", {20}}, {"b", {17}}});
  return instance;
}

// Eighths, whose sums are exact.
std::vector<float> input() {
  std::vector<float> values(layout().elements());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = (static_cast<float>(i * 37 % 101) - 50) / 8;
  return values;
}

using Bytes = std::vector<char>;

std::string path_of(const std::string& name) { return std::string(THINWIRE_GOLDEN) + "/" + name; }

Bytes read_file(const std::string& name) {
  std::ifstream file(path_of(name), std::ios::binary);
  EXPECT_TRUE(file) << path_of(name);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& name, const Bytes& bytes) {
  std::ofstream(path_of(name), std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// One worker's step. The message it sends is put into `sent`; what it receives instead is `received`, unless empty.
std::vector<float> step(const std::string& spec, Bytes& sent, const Bytes& received) {
  Reducer reducer(layout(), {.compressor = spec});
  std::vector<float> gradient = input();
  Reduction reduction = reducer.reduce(parameters_of(layout(), gradient));
  while (const Collective* collective = reduction.next()) {
    if (collective->kind != CollectiveKind::kGather) continue;
    const auto* begin = reinterpret_cast<const char*>(collective->data.data());
    sent.assign(begin, begin + collective->data.size());
    const Bytes& arriving = received.empty() ? sent : received;
    EXPECT_EQ(arriving.size(), collective->result.size());
    if (arriving.size() == collective->result.size()) std::memcpy(collective->result.data(), arriving.data(), arriving.size());
  }
  return gradient;
}

std::vector<float> decoded(const std::string& spec, const Bytes& message) {
  Bytes sent;
  return step(spec, sent, message);
}

Bytes bytes_of(const std::vector<float>& values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Bytes spoilt(Bytes message, const Bad& bad) {
  for (std::size_t i = 0; i < bad.bytes.size(); ++i) message[bad.position + i] = static_cast<char>(bad.bytes[i]);
  return message;
}

// Only what is not there yet: what was written once stays.
void write_missing() {
  const auto missing = [](const std::string& name) { return !std::ifstream(path_of(name)); };
  for (const Good& good : good_files()) {
    Bytes sent;
    const auto mean = step(good.spec, sent, {});
    if (!missing(good.name + ".bin")) continue;
    write_file(good.name + ".bin", sent);
    write_file(good.name + "_mean.f32", bytes_of(mean));
  }
  for (const Bad& bad : bad_files())
    if (missing(bad.name + ".bin")) write_file(bad.name + ".bin", spoilt(read_file(bad.good + ".bin"), bad));
}

TEST(CasqGolden, MessagesAreDecodedToTheSameBits) {
  if (std::getenv("THINWIRE_WRITE_GOLDEN")) write_missing();
  for (const Good& good : good_files()) {
    const Bytes message = read_file(good.name + ".bin");
    EXPECT_EQ(message.size(), good.bytes) << good.name;
    EXPECT_EQ(bytes_of(decoded(good.spec, message)), read_file(good.name + "_mean.f32")) << good.name;
  }
}

TEST(CasqGolden, TodaysEncoderSaysTheSame) {
  for (const Good& good : good_files())
    EXPECT_EQ(bytes_of(decoded(good.spec, {})), read_file(good.name + "_mean.f32")) << good.name;
}

TEST(CasqGolden, SpoiltMessagesAreRefused) {
  for (const Bad& bad : bad_files()) {
    const Bytes message = read_file(bad.name + ".bin");
    EXPECT_EQ(message, spoilt(read_file(bad.good + ".bin"), bad)) << bad.name;
    EXPECT_NE(message, read_file(bad.good + ".bin")) << bad.name;
    EXPECT_THROW(decoded(good_file(bad.good).spec, message), PayloadError) << bad.name;
  }
}

TEST(CasqGolden, NoFileIsLeftOut) {
  std::set<std::string> known;
  for (const Good& good : good_files()) known.insert({good.name + ".bin", good.name + "_mean.f32"});
  for (const Bad& bad : bad_files()) known.insert(bad.name + ".bin");
  for (const auto& file : std::filesystem::directory_iterator(THINWIRE_GOLDEN)) {
    const std::string name = file.path().filename().string();
    EXPECT_TRUE(!name.starts_with("casq_") || known.contains(name)) << name;
  }
}

}  // namespace
}  // namespace thinwire::testing
