// The bytes that sparse ways count, against their formulas: S2's modes, and what they are compared to.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "compressors/s2/peeled_rows.h"
#include "compressors/s2/united_rows.h"
#include "reducer/sparse_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

constexpr std::size_t kBlock = 256;  // of omnireduce

// Whether the row of so many elements is not zero. The last one may be shorter.
bool uses(const std::vector<float>& gradient, std::size_t row, std::size_t length) {
  const auto begin = gradient.begin() + static_cast<std::ptrdiff_t>(row * length);
  const auto end = gradient.begin() + static_cast<std::ptrdiff_t>(std::min(gradient.size(), (row + 1) * length));
  return std::any_of(begin, end, [](float value) { return value != 0; });
}

std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// A list of rows, padded to whole floats: a byte of kind, then a bitmap, or gaps in bytes of seven bits.
std::size_t support_of(const std::vector<float>& gradient, std::size_t length = kRow) {
  const std::size_t rows = ceil_div(gradient.size(), length);
  std::size_t gaps = 0, gap = 0;
  for (std::size_t r = 0; r < rows; ++r, ++gap) {
    if (!uses(gradient, r, length)) continue;
    gaps += gap < 128 ? 1 : 2;
    gap = static_cast<std::size_t>(-1);
  }
  return ceil_div(1 + std::min(gaps, 4 * ceil_div(rows, 32)), 4) * 4;
}

// Of split: elements of the longest shard on its way to an owner, and of the longest of the owners' sums.
std::pair<std::size_t, std::size_t> longest_shards(const Gradients& inputs, std::size_t length = kRow) {
  std::vector<std::size_t> sent(inputs.size() * inputs.size()), owned(inputs.size());
  std::size_t u = 0;
  for (std::size_t r = 0; r * length < inputs[0].size(); ++r) {
    const std::size_t elements = std::min(length, inputs[0].size() - r * length);
    bool any = false;
    for (std::size_t w = 0; w < inputs.size(); ++w) {
      if (!uses(inputs[w], r, length)) continue;
      any = true;
      sent[w * inputs.size() + u % inputs.size()] += elements;
    }
    if (any) owned[u++ % inputs.size()] += elements;
  }
  return {*std::ranges::max_element(sent), *std::ranges::max_element(owned)};
}

std::uint64_t payload_of(const std::string& spec, const Gradients& inputs) {
  Workers workers(embedding(), static_cast<int>(inputs.size()), {.compressor = spec});
  Gradients gradients = inputs;
  workers.step(gradients);
  return workers.reducer(0).counters().payload_bytes;
}

TEST(S2Bits, FollowTheFormulas) {
  for (const int count : {1, 2, 4, 7}) {
    const Gradients inputs = normal_rows(count, 0.04, 5);
    const auto workers = static_cast<std::size_t>(count);
    const std::size_t rows = union_rows(inputs), words = ceil_div(kRows, 32), header = UnionHeader::kWords;
    EXPECT_EQ(payload_of("s2:mode=exact", inputs), 4 * (header + words + rows * kRow));
    // Sketch: cells of sixteen entries.
    const std::size_t groups = rows * kRow / 16;
    EXPECT_EQ(payload_of("s2:mode=sketch,ratio=0.25", inputs), 4 * (header + words + 16 * ((groups + 3) / 4)));
    EXPECT_EQ(payload_of("s2:mode=sketch,ratio=0.25,tables=3", inputs),
              4 * (header + words + 16 * 3 * static_cast<std::size_t>(std::ceil(0.25 * static_cast<double>(groups) / 3))));
    // Peel, before anything is known: a sixteenth of the rows.
    const auto fields = static_cast<std::size_t>(counts_in_float(count));
    const std::size_t table = peeling_cells(kRows / 16.0) * kRow;
    const std::size_t least = 4 * (1 + ceil_div(kRows, fields) + table);
    EXPECT_GE(payload_of("s2:mode=peel", inputs), least);
    EXPECT_EQ(payload_of("s2:mode=peel,feedback=on", inputs), least);
    EXPECT_EQ(payload_of("none", inputs), 4 * kRows * kRow);
    // Gather and split: sizes, then a header, the list of rows, and what it says.
    std::size_t gathered = 0, supports = 0;
    for (const auto& gradient : inputs) {
      gathered = std::max(gathered, 8 + support_of(gradient) + 4 * kRow * union_rows({gradient}));
      supports = std::max(supports, 8 + support_of(gradient));
    }
    EXPECT_EQ(payload_of("s2:mode=gather", inputs), 8 + gathered);
    const auto [sent, owned] = longest_shards(inputs);
    EXPECT_EQ(payload_of("s2:mode=split", inputs), 8 + supports + 4 * (workers * sent + owned));
  }
}

// Of sparcml: the most entries that a worker has for an owner, that an owner's sums have, and that an owner is responsible for.
struct Streams {
  std::size_t sent, owned, places;
};

Streams longest_streams(const Gradients& inputs) {
  constexpr std::size_t kStripe = 1024;
  const std::size_t workers = inputs.size();
  std::vector<std::size_t> sent(workers * workers), owned(workers), places(workers);
  for (std::size_t i = 0; i < inputs[0].size(); ++i) {
    const std::size_t owner = i / kStripe % workers;
    float sum = 0;
    for (std::size_t w = 0; w < workers; ++w) {
      sent[w * workers + owner] += inputs[w][i] != 0 ? 1 : 0;
      sum += inputs[w][i];
    }
    owned[owner] += sum != 0 ? 1 : 0;
    ++places[owner];
  }
  return {*std::ranges::max_element(sent), *std::ranges::max_element(owned), *std::ranges::max_element(places)};
}

TEST(BaselineBits, FollowTheFormulas) {
  for (const double density : {0.0, 0.01, 0.04, 0.3, 0.7})
    for (const int count : {1, 2, 4, 7}) {
      SCOPED_TRACE(std::to_string(density) + ", " + std::to_string(count) + " workers");
      const Gradients inputs = normal_rows(count, density, 6);
      const auto workers = static_cast<std::size_t>(count);
      // The worker with the most rows counts; where nobody has any, the counts say so.
      std::size_t most = 0, supports = 0;
      for (const auto& gradient : inputs) {
        most = std::max(most, union_rows({gradient}));
        supports = std::max(supports, 8 + support_of(gradient, kBlock));
      }
      EXPECT_EQ(payload_of("coordinates", inputs), 16 + most * (8 + 4 * kRow));
      const auto [sent, owned] = longest_shards(inputs, kBlock);
      EXPECT_EQ(payload_of("omnireduce", inputs), 8 + supports + 4 * (workers * sent + owned));
      // Pairs of 64 bits, or dense where that is shorter.
      const Streams streams = longest_streams(inputs);
      EXPECT_EQ(payload_of("sparcml", inputs), 4 * (1 + workers) + workers * std::min(8 * streams.sent, 4 * streams.places) + 8 +
                                                   std::min(8 * streams.owned, 4 * streams.places));
    }
}

TEST(S2Bits, AStageCostsTheBitmapAndItsOwn) {
  const Gradients inputs = normal_rows(4, 0.05, 3);
  Gradients gradients = inputs;
  Workers workers(embedding(), 4, {.compressor = "s2:mode=exact/casq:bits=2"});
  workers.step(gradients);
  const std::size_t elements = union_rows(inputs) * kRow;
  ASSERT_LT(elements, 32768u);
  const std::size_t bitmap = 4 * (UnionHeader::kWords + (kRows + 31) / 32);
  EXPECT_EQ(workers.reducer(0).counters().payload_bytes, bitmap + 12 + 1 + 16 + (2 * elements + 7) / 8);
}

}  // namespace
}  // namespace thinwire::testing
