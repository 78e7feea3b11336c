// Messages of CASQ's wire format 1, as files: what was written once must be read for ever, and spoilt ones be refused.
// The encoder may change, so it is only held to messages that decode to the same floats. The files are of two parameters
// of 20 and 17 elements, the input is input() below, the spec kSpec, one worker. To write them anew, for a new format:
// THINWIRE_WRITE_GOLDEN=1 compressors_test --gtest_filter='CasqGolden.*'
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

constexpr char kSpec[] = "casq:bits=2,feedback=off";

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
std::vector<float> step(Reducer& reducer, Bytes& sent, const Bytes& received) {
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

std::vector<float> decoded(const Bytes& message) {
  Reducer reducer(layout(), {.compressor = kSpec});
  Bytes sent;
  return step(reducer, sent, message);
}

Bytes bytes_of(const std::vector<float>& values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

struct Bad {
  const char* name;
  std::size_t position;
  char byte;
};
// The header's five fields, and a first cluster mean that is NaN (after 8 bytes of header and 1 of bitmap).
constexpr Bad kBad[] = {{"casq_v1_bad_wire_id.bin", 0, 17},  {"casq_v1_bad_version.bin", 1, 2},
                        {"casq_v1_bad_flags.bin", 2, 2},     {"casq_v1_bad_reserved.bin", 3, 1},
                        {"casq_v1_bad_elements.bin", 4, 36}, {"casq_v1_bad_mean.bin", 12, 0x7f}};

Bytes spoilt(Bytes message, const Bad& bad) {
  message[bad.position] = bad.byte;
  if (bad.position == 12) message[11] = static_cast<char>(0xc0);
  return message;
}

TEST(CasqGolden, TheMessageIsDecodedToTheSameBits) {
  if (std::getenv("THINWIRE_WRITE_GOLDEN")) {
    Reducer reducer(layout(), {.compressor = kSpec});
    Bytes sent;
    const auto mean = step(reducer, sent, {});
    write_file("casq_v1.bin", sent);
    write_file("casq_v1_mean.f32", bytes_of(mean));
    for (const Bad& bad : kBad) write_file(bad.name, spoilt(sent, bad));
  }
  const Bytes message = read_file("casq_v1.bin");
  EXPECT_EQ(message.size(), 8u + 1 + 2 * 16 + 5 + 5);
  EXPECT_EQ(bytes_of(decoded(message)), read_file("casq_v1_mean.f32"));
}

TEST(CasqGolden, TodaysEncoderSaysTheSame) { EXPECT_EQ(bytes_of(decoded({})), read_file("casq_v1_mean.f32")); }

TEST(CasqGolden, SpoiltMessagesAreRefused) {
  for (const Bad& bad : kBad) {
    const Bytes message = read_file(bad.name);
    EXPECT_EQ(message, spoilt(read_file("casq_v1.bin"), bad)) << bad.name;
    EXPECT_THROW(decoded(message), PayloadError) << bad.name;
  }
}

}  // namespace
}  // namespace thinwire::testing
