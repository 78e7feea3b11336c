// Exchanges of all compressors but CASQ, which has its own test, and GradiVeQ, as files: what was written once must be read for ever, and
// spoilt bytes be refused. A file holds all that arrives at worker 0 of two, collective after collective: sums and
// unions, gathered messages of both workers, shards of both. To write files that are missing, for a new format:
// THINWIRE_WRITE_GOLDEN=1 compressors_test --gtest_filter='Golden.*'
#include <array>
#include <cstdlib>
#include <memory>

#include <gtest/gtest.h>

#include "compressors/golden_files.h"
#include "compressors/registry.h"
#include "kernels/targets.h"
#include "reducer/deliver.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

constexpr std::size_t kWorkers = 2;

// bytes: of what arrives by each collective, by the formulas of docs/wire_format.md.
struct Good {
  std::string name;
  std::string spec;
  std::vector<std::size_t> bytes;
  bool by_lapack = false;  // a message that processors write differently: only what it is decoded to is compared
};
// Worker 0 uses 12 rows of 64 entries, worker 1 uses 4 of 24, together they use 13 of 70. A bitmap has 2 + 1 words.
const std::vector<Good>& good_files() {
  static const std::vector<Good> files = {
      {"s2_exact", "s2:mode=exact", {4 * 8, 4 * 70}},
      // Worker 0's list of rows is a bitmap (13 bytes, padded), worker 1's are gaps (5, padded).
      {"s2_gather", "s2:mode=gather", {16, 2 * (8 + 16 + 4 * 64)}},
      {"s2_split", "s2:mode=split", {16, 2 * (8 + 16), 2 * 4 * 32, 2 * 4 * 38}},
      {"s2_peel", "s2:mode=peel", {4 * (1 + 5 + 42 * 6 + 1 + 14)}},  // 12 counts in a float; b's rows as they are
      {"s2_sketch", "s2:mode=sketch,ratio=0.5", {4 * 8, 4 * (16 * 3 + 4)}},
      {"s2_sketch3", "s2:mode=sketch,ratio=0.5,tables=3", {4 * 8, 4 * (3 * 16 * 1 + 4)}},
      {"coordinates", "coordinates", {2 * 16, 2 * 8 * 12, 2 * 4 * 64}},
      {"sparcml", "sparcml", {2 * 3 * 4, 2 * 8 * 64, 16, 2 * 8 * 70}},
      {"omnireduce", "omnireduce:block=16", {16, 2 * (8 + 12), 2 * 4 * 78, 2 * 4 * 78}},
      {"qsgd_v2", "qsgd:bits=4,reduce=gather", {2 * (12 + 1 + 4 + 180 + 4 + 7)}},
      // Frequencies, states and words of a's 360 numbers; b's 14 are packed as they were.
      {"qsgd_v2_entropy", "qsgd:bits=4,reduce=gather,coding=entropy", {2 * (8 + 12 + 1 + 8), 2 * (4 + 1 + 72 + 4 + 1 + 7)}},
      {"qsgd_v2_elias", "qsgd:bits=4,reduce=gather,coding=elias", {2 * (8 + 12 + 1 + 8), 2 * (4 + 1 + 51 + 4 + 1 + 5)}},
      {"randomk", "randomk:density=0.1", {4 * (36 + 2 + 3)}},  // and a head
      {"scalecom", "scalecom:density=0.1", {4 * (6 + 1), 4 * (36 + 2 + 3)}},  // places of 24 and 2 bytes; as randomk
      // Three tables of 3 cells, of a alone; as randomk.
      {"sketchedsgd", "sketchedsgd:density=0.1,sketch=4,tables=3", {4 * 144, 4 * (36 + 2 + 3)}},
      {"fetchsgd", "fetchsgd:density=0.1,sketch=4,tables=3,momentum=0.5", {4 * (144 + 14 + 1)}},  // the same tables; b as it is
      // 36 and 2 places: the lower 3 and 2 bits of each, and strings of 36 + 44 and 2 + 3 bits.
      {"topk_v1", "topk:density=0.1", {2 * (12 + 1 + 4 * 36 + 14 + 10 + 4 * 2 + 1 + 1)}},
      {"topk_v1_bf16", "topk:density=0.3,values=bf16", {2 * (12 + 1 + 2 * 108 + 14 + 36 + 2 * 5 + 1 + 2)}},
      {"ef21_v1", "ef21:density=0.1", {2 * (12 + 1 + 4 * 36 + 14 + 10 + 4 * 2 + 1 + 1)}},
      // As mucsc's, 36 and 2 numbers of 3 bits; places as topk's.
      {"bmucsc_v1", "bmucsc:density=0.1,bits=3", {2 * (12 + 1 + 4 + 32 + 14 + 14 + 10 + 4 + 32 + 1 + 1 + 1)}},
      {"demo_v1", "demo:density=0.1", {2 * (12 + 1 + 4 * 36 + 14 + 10 + 4 * 2 + 1 + 1)}},
      // 6 entries of 360 and 1 of 14: 32 + 36 + 19 and 32 + 6 + 1 bits.
      {"sparseloco_v1", "sparseloco", {2 * (12 + 1 + 11 + 5)}},
      // Sixteen means; 36 and 2 places; signs, numbers of two groups, and of each group two rows of 9 and 1 cells of 3 bits.
      {"skcompress_v1", "skcompress:density=0.1,bits=4,groups=2,cells=0.5", {2 * (12 + 1 + 64 + 14 + 10 + 5 + 5 + 14 + 64 + 1 + 1 + 1 + 1 + 2)}},
      {"qsgd_v2_sum", "qsgd:bits=4,reduce=sum", {3 * 4, 4 * (60 + 3)}},  // norms and a head; fields of 5 bits, 6 in a word
      // One bucket a chunk, but of mxfp4: twelve and one.
      {"efsign_v1", "efsign", {2 * (12 + 1 + 4 + 45 + 4 + 2)}},
      {"terngrad_v1", "terngrad", {2 * (12 + 1 + 4 + 90 + 4 + 4)}},
      {"nuqsgd_v1", "nuqsgd:bits=4", {2 * (12 + 1 + 4 + 180 + 4 + 7)}},
      {"natural_v1", "natural:bits=8", {2 * (12 + 1 + 4 + 360 + 4 + 14)}},
      {"dorefa_v1", "dorefa:bits=3", {2 * (12 + 1 + 4 + 135 + 4 + 6)}},
      {"int_v1", "int:bits=8", {2 * (12 + 1 + 4 + 360 + 4 + 14)}},
      {"fp8_v1", "fp8:format=e4m3", {2 * (12 + 1 + 4 + 360 + 4 + 14)}},
      {"fp8_v1_e5m2", "fp8:format=e5m2", {2 * (12 + 1 + 4 + 360 + 4 + 14)}},
      {"mxfp4_v1", "mxfp4", {2 * (12 + 1 + 12 + 180 + 1 + 7)}},
      {"onebit_v1", "onebit", {2 * (12 + 1 + 8 + 45 + 8 + 2)}},
      {"eden_v1", "eden:bits=2", {2 * (12 + 1 + 3 * 4 + 4 + 96 + 4 + 4 + 16)}},  // blocks of 256, 64 and 64 entries; of 64
      {"thc", "thc:bits=4", {4 * (3 + 1 + 3), 4 * (64 + 11)}},                    // norms and a head; fields of 5 bits, 6 in a word
      {"atomo_v1", "atomo:rank=1", {2 * (12 + 1 + 4 * (60 + 6) + 4 * 14)}, true},  // two factors of a, b as it is
      {"powersgd", "powersgd:rank=1", {4 * (60 + 14 + 3), 4 * 6}},               // P of a, b as it is, and a head; Q of a
  };
  return files;
}

const std::vector<Bad>& bad_files() {
  static const std::vector<Bad> files = {
      {"s2_exact_bad_row", "s2_exact", 27, {0x18}},  // row 60 of 60
      {"s2_sketch_bad_row", "s2_sketch", 27, {0x18}},
      {"s2_gather_bad_own_size", "s2_gather", 0, {20}},
      {"s2_gather_bad_size", "s2_gather", 8, {0xff, 0xff}},  // longer than all rows
      {"s2_gather_bad_within_value", "s2_gather", 8, {111}},
      {"s2_gather_bad_rows_missing", "s2_gather", 8, {108}},
      // Worker 1's message begins at 16 + 280: a flag, the length of its list, the list.
      {"s2_gather_bad_flag", "s2_gather", 296, {2}},
      {"s2_gather_bad_list_length", "s2_gather", 300, {0xff}},
      {"s2_gather_bad_list_form", "s2_gather", 304, {2}},
      {"s2_gather_bad_gap", "s2_gather", 308, {95}},  // beyond the bitmap
      {"s2_gather_bad_row", "s2_gather", 308, {52}},  // row 60 of 60
      {"s2_split_bad_list_form", "s2_split", 48, {2}},
      {"s2_split_bad_flag", "s2_split", 40, {2}},
      {"s2_peel_bad_negative_count", "s2_peel", 4, {0, 0, 0x80, 0xbf}},
      {"s2_peel_bad_large_count", "s2_peel", 4, {0, 0, 0x80, 0x4b}},  // 2^24
      {"coordinates_bad_count", "coordinates", 16, {200}},
      {"coordinates_bad_flag", "coordinates", 24, {2}},
      {"coordinates_bad_order", "coordinates", 136, {0}},  // row 0 after row 0
      {"coordinates_bad_number", "coordinates", 152, {200}},
      {"coordinates_bad_row", "coordinates", 152, {60}},
      {"sparcml_bad_flag", "sparcml", 12, {2}},
      {"sparcml_bad_count", "sparcml", 16, {0xff, 0xff}},
      {"sparcml_bad_index", "sparcml", 536, {0xff, 0xff, 0xff, 0xff}},      // worker 1's shard
      {"sparcml_bad_sums_length", "sparcml", 1056, {0xff, 0xff}},           // of worker 1
      {"sparcml_bad_within_entry", "sparcml", 1056, {4}},
      {"sparcml_bad_sums_index", "sparcml", 1064, {0xff, 0xff, 0xff, 0xff}},
      {"omnireduce_bad_flag", "omnireduce", 36, {2}},
      // Worker 1's message begins at 208: twelve bytes of header, one of bitmap, a's step.
      {"qsgd_v2_bad_wire_id", "qsgd_v2", 208, {16}},
      {"qsgd_v2_bad_version", "qsgd_v2", 209, {1}},
      {"qsgd_v2_bad_flags", "qsgd_v2", 210, {2}},
      {"qsgd_v2_bad_elements", "qsgd_v2", 212, {0}},
      {"qsgd_v2_bad_checksum", "qsgd_v2", 216, {0}},
      {"qsgd_v2_bad_step", "qsgd_v2", 221, {0, 0, 0x80, 0xbf}},            // -1
      {"qsgd_v2_bad_step_nan", "qsgd_v2", 221, {0, 0, 0xc0, 0x7f}},
      // a's places: the lower bits, up to byte 14, then the upper ones. Worker 0 leads a, and worker 1 b.
      {"scalecom_bad_order", "scalecom", 0, {0x80}},
      {"scalecom_bad_place_missing", "scalecom", 14, {0x7f}},
      {"scalecom_bad_no_places", "scalecom", 24, {0, 0}},
      // Worker 0's message ends with b's code: two values from 181 on, places 3 and 13. Worker 1's begins at 191: a's 36 values from
      // 204 on, the lower bits of its places from 348 on, the upper ones from 362 on.
      {"topk_v1_bad_version", "topk_v1", 192, {2}},
      {"topk_v1_bad_value_nan", "topk_v1", 204, {0, 0, 0xc0, 0x7f}},
      {"topk_v1_bad_value_infinite", "topk_v1", 344, {0, 0, 0x80, 0xff}},
      {"topk_v1_bad_order", "topk_v1", 348, {0x80}},          // place 0 after place 0
      {"topk_v1_bad_place_missing", "topk_v1", 362, {0x7f}},
      {"topk_v1_bad_place", "topk_v1", 189, {0x0f}},           // 15 of 14
      {"topk_v1_bad_unused_bits", "topk_v1", 189, {0x17}},
      {"topk_v1_bad_upper_bits", "topk_v1", 190, {0x91}},      // a third place
      {"topk_v1_bad_no_places", "topk_v1", 189, {0, 0}},
      {"topk_v1_bf16_bad_value", "topk_v1_bf16", 305, {0x80, 0x7f}},
      // Worker 1's message begins at 208, 395, 213, 76 and 149, and its code of a 13 bytes later.
      {"nuqsgd_v1_bad_wire_id", "nuqsgd_v1", 208, {51}},
      {"int_v1_bad_version", "int_v1", 396, {2}},
      {"int_v1_bad_unit", "int_v1", 408, {0, 0, 0x80, 0xbf}},
      {"int_v1_bad_unit_nan", "int_v1", 408, {0, 0, 0xc0, 0x7f}},
      {"int_v1_bad_large_unit", "int_v1", 408, {0, 0, 0x80, 0x7e}},  // 127 times it is infinite
      {"mxfp4_v1_bad_unit", "mxfp4_v1", 226, {0xff}},
      {"onebit_v1_bad_mean", "onebit_v1", 89, {0, 0, 0xc0, 0x7f}},
      {"onebit_v1_bad_order", "onebit_v1", 89, {0, 0, 0x80, 0x3f}},  // what a 0 becomes is above 0
      {"eden_v1_bad_scale", "eden_v1", 162, {0, 0, 0x80, 0xbf}},
      {"eden_v1_bad_scale_nan", "eden_v1", 162, {0, 0, 0xc0, 0x7f}},
      // Worker 1's message begins at 29, its code of a at 42: two magnitudes, six times six bits, and a number of 19.
      {"sparseloco_v1_bad_magnitude", "sparseloco_v1", 42, {0xc0, 0x7f}},
      {"sparseloco_v1_bad_sign", "sparseloco_v1", 44, {0x80, 0xbf}},
      {"sparseloco_v1_bad_order", "sparseloco_v1", 44, {0, 0}},
      {"sparseloco_v1_bad_no_number", "sparseloco_v1", 50, {0, 0, 0}},
      {"sparseloco_v1_bad_number", "sparseloco_v1", 50, {0xff, 0xff, 0x7f}},
      {"sparseloco_v1_bad_unused_bit", "sparseloco_v1", 52, {0x80}},
      // Worker 1's code of a begins at 139: a unit, eight levels, 14 bytes of numbers, places as topk's. Worker 0's places of b are at 124.
      {"bmucsc_v1_bad_version", "bmucsc_v1", 127, {2}},
      {"bmucsc_v1_bad_unit", "bmucsc_v1", 139, {0, 0, 0x80, 0xbf}},
      {"bmucsc_v1_bad_level", "bmucsc_v1", 143, {0, 0, 0, 0xc0}},  // -2
      {"bmucsc_v1_bad_order", "bmucsc_v1", 189, {0x80}},
      {"bmucsc_v1_bad_place_missing", "bmucsc_v1", 203, {0x7f}},
      {"bmucsc_v1_bad_no_places", "bmucsc_v1", 124, {0, 0}},
      // Worker 1's code of a begins at 208: sixteen means, places as topk's from 272 on.
      {"skcompress_v1_bad_version", "skcompress_v1", 196, {2}},
      {"skcompress_v1_bad_mean", "skcompress_v1", 208, {0, 0, 0x80, 0xbf}},
      {"skcompress_v1_bad_mean_nan", "skcompress_v1", 212, {0, 0, 0xc0, 0x7f}},
      {"skcompress_v1_bad_order", "skcompress_v1", 272, {0x80}},
      {"skcompress_v1_bad_place_missing", "skcompress_v1", 286, {0x7f}},
      // Worker 1's message begins at 333, its code of a at 346.
      {"atomo_v1_bad_version", "atomo_v1", 334, {2}},
      {"atomo_v1_bad_factor", "atomo_v1", 346, {0, 0, 0xc0, 0x7f}},
      {"atomo_v1_bad_product", "atomo_v1", 586, {0, 0, 0x80, 0x7e}},  // 2^126
      {"demo_v1_bad_coefficient", "demo_v1", 204, {0, 0, 0x80, 0x7e}},  // 2^126
      {"qsgd_v2_bad_large_step", "qsgd_v2", 221, {0xff, 0xff, 0x7f, 0x7f}},  // seven of it are infinite
  };
  return files;
}

const Layout& layout() {
  static const Layout instance({{"a", {60, 6}}, {"b", {7, 2}}});
  return instance;
}

// Eighths, whose sums are exact, in some rows.
std::vector<float> input(int rank) {
  const std::array<std::vector<std::size_t>, 2> rows_of_a = {{{0, 1, 2, 5, 13, 14, 30, 31, 32, 59}, {0, 2, 7, 59}}};
  std::vector<float> values(layout().elements());
  const auto fill = [&](std::size_t begin, std::size_t count) {
    for (std::size_t i = begin; i < begin + count; ++i)
      values[i] = static_cast<float>((i * 37 + static_cast<std::size_t>(rank)) % 101 + 1) / 8;
  };
  for (const std::size_t row : rows_of_a[static_cast<std::size_t>(rank)]) fill(6 * row, 6);
  if (rank == 0) fill(360 + 2, 2), fill(360 + 12, 2);  // rows 1 and 6 of b
  return values;
}

std::span<std::byte> arriving(const Collective& collective) {
  return collective.result.empty() ? collective.data : collective.result;
}

struct Exchanged {
  Bytes arrived;  // at worker 0
  std::vector<std::size_t> bytes;
  std::vector<float> mean;
};

Exchanged exchange(const std::string& spec) {
  Exchanged result;
  Reducer first(layout(), {.compressor = spec, .rank = 0, .world_size = 2});
  Reducer second(layout(), {.compressor = spec, .rank = 1, .world_size = 2});
  std::vector<float> other = input(1);
  result.mean = input(0);
  Reduction mine = first.reduce(parameters_of(layout(), result.mean)), others = second.reduce(parameters_of(layout(), other));
  while (const Collective* collective = mine.next()) {
    deliver(std::array{*collective, *others.next()});
    const auto bytes = arriving(*collective);
    const auto* const begin = reinterpret_cast<const char*>(bytes.data());
    result.arrived.insert(result.arrived.end(), begin, begin + bytes.size());
    result.bytes.push_back(bytes.size());
  }
  EXPECT_EQ(others.next(), nullptr);
  EXPECT_EQ(result.mean, other);
  return result;
}

// What worker 0 makes of a file.
std::vector<float> decoded(const std::string& spec, const Bytes& file) {
  Reducer reducer(layout(), {.compressor = spec, .rank = 0, .world_size = 2});
  std::vector<float> gradient = input(0);
  Reduction reduction = reducer.reduce(parameters_of(layout(), gradient));
  std::size_t read = 0;
  while (const Collective* collective = reduction.next()) {
    const auto bytes = arriving(*collective);
    if (bytes.size() > file.size() - read) throw std::logic_error("more is wanted than the file has");
    std::memcpy(bytes.data(), file.data() + read, bytes.size());
    read += bytes.size();
  }
  EXPECT_EQ(read, file.size()) << spec;
  return gradient;
}

TEST(Golden, ExchangesAreDecodedToTheSameBits) {
  for (const Good& good : good_files()) {
    const Exchanged today = exchange(good.spec);
    EXPECT_EQ(today.bytes, good.bytes) << good.name;
    if (std::getenv("THINWIRE_WRITE_GOLDEN") && is_missing(good.name + ".bin")) {
      write_file(good.name + ".bin", today.arrived);
      write_file(good.name + "_mean.f32", bytes_of(today.mean));
    }
    const Bytes mean = read_file(good.name + "_mean.f32");
    EXPECT_EQ(bytes_of(decoded(good.spec, read_file(good.name + ".bin"))), mean) << good.name;
    if (!good.by_lapack) { EXPECT_EQ(bytes_of(today.mean), mean) << good.name << ", by today's encoder"; }
  }
}

TEST(Golden, EverySimdTargetSaysTheSame) {
  for (const std::string& target : kernels::available_targets()) {
    kernels::force_target(target);
    for (const Good& good : good_files()) {
      EXPECT_EQ(bytes_of(decoded(good.spec, read_file(good.name + ".bin"))), read_file(good.name + "_mean.f32")) << good.name << ", " << target;
      if (good.by_lapack) continue;
      const Exchanged today = exchange(good.spec);
      EXPECT_EQ(bytes_of(today.mean), read_file(good.name + "_mean.f32")) << good.name << ", " << target;
      EXPECT_EQ(today.arrived, read_file(good.name + ".bin")) << good.name << ", " << target;
    }
  }
  kernels::force_target("");
}

TEST(Golden, LosslessOnesHoldTheExactMean) {
  const std::vector<float> first = input(0), second = input(1);
  for (const Good& good : good_files()) {
    if (!make_compressor(good.spec).claims.lossless) continue;
    const std::vector<float> mean = decoded(good.spec, read_file(good.name + ".bin"));
    for (std::size_t i = 0; i < mean.size(); ++i) ASSERT_EQ(mean[i], (first[i] + second[i]) / 2) << good.name << ", " << i;
  }
}

TEST(Golden, SpoiltExchangesAreRefused) {
  if (std::getenv("THINWIRE_WRITE_GOLDEN")) write_missing(bad_files(), kWorkers);
  for (const Bad& bad : bad_files())
    EXPECT_THROW(decoded(file_named(bad.good, good_files()).spec, read_bad(bad, kWorkers)), PayloadError) << bad.name;
}

TEST(Golden, NoFileIsLeftOut) {
  expect_no_other_files([](const std::string& name) { return !name.starts_with("casq_"); }, good_files(), bad_files());
}

}  // namespace
}  // namespace thinwire::testing
