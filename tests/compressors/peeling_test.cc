// Peeling against a slow reference, and supports' codes there and back.
#include "compressors/s2/peeling.h"

#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "compressors/s2/peeled_rows.h"
#include "compressors/s2/sparse_support.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

std::vector<std::uint32_t> random_keys(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::set<std::uint32_t> keys;
  while (keys.size() < count) keys.insert(static_cast<std::uint32_t>(random() % (10 * count + 10)));
  return {keys.begin(), keys.end()};
}

// Takes any key that is alone in a cell, until there is none.
std::set<std::uint32_t> slow_rest(const std::vector<std::uint32_t>& keys, const PeelingHashes& hashes) {
  std::set<std::uint32_t> left;
  for (std::uint32_t k = 0; k < keys.size(); ++k) left.insert(k);
  for (bool found = true; found;) {
    found = false;
    for (const std::uint32_t k : left) {
      for (std::size_t third = 0; third < 3 && !found; ++third) {
        const auto cell = hashes.place(keys[k], third).cell;
        found = std::none_of(left.begin(), left.end(), [&](std::uint32_t other) {
          if (other == k) return false;
          for (std::size_t t = 0; t < 3; ++t)
            if (hashes.place(keys[other], t).cell == cell) return true;
          return false;
        });
      }
      if (found) {
        left.erase(k);
        break;
      }
    }
  }
  return left;
}

TEST(Peeling, LeavesWhatMustBeLeft) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    const auto keys = random_keys(1 + seed, seed);
    const PeelingHashes hashes{{seed, seed + 100, seed + 200}, 1 + static_cast<std::uint32_t>(keys.size()) / 3};
    Scratch scratch;
    const Peeling peeling(keys, hashes, scratch);
    const auto expected = slow_rest(keys, hashes);
    EXPECT_EQ(std::set<std::uint32_t>(peeling.left().begin(), peeling.left().end()), expected);
    EXPECT_EQ(peeling.order().size() + expected.size(), keys.size());
  }
}

TEST(Peeling, EveryStepFindsItsKeyAlone) {
  const auto keys = random_keys(500, 3);
  const PeelingHashes hashes{{1, 2, 3}, 220};
  Scratch scratch;
  const Peeling peeling(keys, hashes, scratch);
  std::vector<int> count(660);
  for (const std::uint32_t key : keys)
    for (std::size_t third = 0; third < 3; ++third) ++count[hashes.place(key, third).cell];
  for (const Peeling::Step& step : peeling.order()) {
    EXPECT_EQ(count[hashes.place(keys[step.key], step.third).cell], 1);
    for (std::size_t third = 0; third < 3; ++third) --count[hashes.place(keys[step.key], third).cell];
  }
  for (std::uint32_t cell = 0; cell < count.size(); ++cell) EXPECT_EQ(peeling.left_in(cell), static_cast<std::uint32_t>(count[cell]));
}

TEST(Peeling, TheTableIsLargeEnough) {
  for (const std::size_t rows : {1u, 5u, 30u, 300u, 5000u}) {
    int failed = 0;
    const int trials = rows > 1000 ? 20 : 200;
    for (int trial = 0; trial < trials; ++trial) {
      const auto keys = random_keys(rows, static_cast<unsigned>(trial));
      const auto seed = static_cast<std::uint64_t>(trial);
      const PeelingHashes hashes{{3 * seed, 3 * seed + 1, 3 * seed + 2},
                                 static_cast<std::uint32_t>(peeling_cells(static_cast<double>(rows)) / 3)};
      Scratch scratch;
      failed += Peeling(keys, hashes, scratch).left().empty() ? 0 : 1;
    }
    EXPECT_LE(failed, trials / 20) << rows;
  }
}

TEST(Support, ThereAndBack) {
  std::mt19937 random(1);
  for (const std::size_t size : {0u, 1u, 5u, 1000u})
    for (const int density : {0, 1, 50, 1000})
      for (int trial = 0; trial < 5; ++trial) {
        std::vector<std::uint32_t> words(size), read(size, 7);
        for (std::size_t bit = 0; bit < 32 * size; ++bit)
          if (static_cast<int>(random() % 1000) < density) words[bit / 32] |= 1u << (bit % 32);
        std::vector<std::byte> bytes(support_bytes(words));
        EXPECT_LE(bytes.size(), 1 + 4 * size);
        ByteWriter writer(bytes);
        write_support(words, writer);
        EXPECT_EQ(writer.left(), 0u);
        ByteReader reader(bytes, "a support");
        read_support(reader, read);
        EXPECT_EQ(read, words);
      }
}

TEST(Support, FewRowsTakeAboutAByteEach) {
  std::vector<std::uint32_t> words(1563);  // 50,000 rows
  for (std::size_t bit = 0; bit < 50000; bit += 100) words[bit / 32] |= 1u << (bit % 32);
  EXPECT_EQ(support_bytes(words), 1u + 500u);
}

TEST(Support, BeyondTheEndIsRefused) {
  std::vector<std::uint32_t> words(1);
  for (const std::vector<unsigned char>& bytes : std::vector<std::vector<unsigned char>>{
           {}, {2}, {1, 32}, {1, 0x80}, {1, 31, 0}, {0, 1, 2, 3}, {0, 1, 2, 3, 4, 5},
           {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}}) {
    ByteReader reader(std::as_bytes(std::span(bytes)), "a support");
    EXPECT_THROW(read_support(reader, words), PayloadError);
  }
}

}  // namespace
}  // namespace thinwire
