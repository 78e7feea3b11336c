// Messages of CASQ's wire format 2, as files: what was written once must be read for ever, and spoilt ones be refused.
// The encoder may change, so it is only held to messages that decode to the same floats. The files are of two parameters
// of 20 and 17 elements, the input is input() below, one worker. To write them anew, for a new format:
// THINWIRE_WRITE_GOLDEN=1 compressors_test --gtest_filter='CasqGolden.*'
#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>

#include "compressors/golden_files.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

constexpr std::size_t kWorkers = 1;

struct Good {
  std::string name;
  std::string spec;
  std::size_t bytes;  // by the formula of docs/wire_format.md
};
const std::vector<Good>& good_files() {
  static const std::vector<Good> files = {
      {"casq_v2", "casq:bits=2,feedback=off", 12 + 1 + 2 * 16 + 5 + 5},
      {"casq_v2_table", "casq:bits=2,table=0.2,feedback=off", 12 + 1 + 2 * 8 + (4 + 4 + 4 + 3) * 4 + 5 + 5},
      {"casq_v2_hash", "casq:bits=2,table=0.2,assign=hash,precision=bf16,feedback=off",
       12 + 1 + 2 * 8 + (4 + 4 + 4 + 3) * 2 + 5 + 5},
      {"casq_v2_block", "casq:bits=3,scope=block,precision=bf16,feedback=off", 12 + 1 + 2 * 8 * 2 + 2 * 2 + 8 + 7},
      {"casq_v2_8bits", "casq:bits=8,feedback=off", 12 + 1 + 2 * 256 * 4 + 20 + 17},
  };
  return files;
}

// Positions: 12 bytes of header, 1 of bitmap, then the first parameter's code.
const std::vector<Bad>& bad_files() {
  static const std::vector<Bad> files = {
      {"casq_v2_bad_wire_id", "casq_v2", 0, {17}},
      {"casq_v2_bad_version", "casq_v2", 1, {1}},
      {"casq_v2_bad_flags", "casq_v2", 2, {2}},
      {"casq_v2_bad_reserved", "casq_v2", 3, {1}},
      {"casq_v2_bad_elements", "casq_v2", 4, {36}},
      {"casq_v2_bad_checksum", "casq_v2", 8, {0}},
      {"casq_v2_bad_mean", "casq_v2", 15, {0xc0, 0x7f}},            // the first mean is NaN
      {"casq_v2_bad_buckets", "casq_v2_table", 13, {0xff, 0xff}},   // more buckets than the table has
      {"casq_v2_bad_no_bucket", "casq_v2_table", 13, {0, 0, 6, 0, 1, 0, 1, 0}},  // 8 in all, but a cluster without any
      {"casq_v2_bad_entry", "casq_v2_hash", 21, {0x80, 0x7f}},      // an infinite mean, of 16 bits
      {"casq_v2_bad_scale", "casq_v2_block", 29, {0x80, 0xbf}},     // a scale of -1
      {"casq_v2_bad_scale_nan", "casq_v2_block", 29, {0xc0, 0x7f}},
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

void write_missing_files() {
  for (const Good& good : good_files()) {
    if (!is_missing(good.name + ".bin")) continue;
    Bytes sent;
    const auto mean = step(good.spec, sent, {});
    write_file(good.name + ".bin", sent);
    write_file(good.name + "_mean.f32", bytes_of(mean));
  }
  write_missing(bad_files(), kWorkers);
}

TEST(CasqGolden, MessagesAreDecodedToTheSameBits) {
  if (std::getenv("THINWIRE_WRITE_GOLDEN")) write_missing_files();
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
  for (const Bad& bad : bad_files())
    EXPECT_THROW(decoded(file_named(bad.good, good_files()).spec, read_bad(bad, kWorkers)), PayloadError) << bad.name;
}

TEST(CasqGolden, NoFileIsLeftOut) {
  expect_no_other_files([](const std::string& name) { return name.starts_with("casq_"); }, good_files(), bad_files());
}

}  // namespace
}  // namespace thinwire::testing
