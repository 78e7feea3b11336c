// What other workers send of their rows, spoilt: an error or some mean, but never a read or write beyond.
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

// Plays a second worker that sends what this one sends; `spoil(n, received)` may change what the n-th collective brought.
template <class Spoil>
void reduce_with_twin(Reducer& reducer, std::vector<float>& gradient, Spoil spoil) {
  Reduction reduction = reducer.reduce(parameters_of(reducer.layout(), gradient));
  for (int n = 0;; ++n) {
    const Collective* const collective = reduction.next();
    if (!collective) return;
    const std::size_t size = collective->data.size();
    if (collective->kind == CollectiveKind::kGather) {
      std::memcpy(collective->result.data(), collective->data.data(), size);
      std::memcpy(collective->result.data() + size, collective->data.data(), size);
    } else if (collective->kind == CollectiveKind::kScatter) {
      std::memcpy(collective->result.data(), collective->data.data(), size / 2);
      std::memcpy(collective->result.data() + size / 2, collective->data.data(), size / 2);
    }
    spoil(n, collective->result.empty() ? collective->data : collective->result.last(collective->result.size() / 2));
  }
}

class S2ForeignBytes : public ::testing::TestWithParam<const char*> {};

TEST_P(S2ForeignBytes, AreRefusedOrHarmless) {
  const Layout layout({{"a", {50, 3}}, {"b", {37}}});
  std::vector<float> input(layout.elements());
  std::mt19937 random(1);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = i / 3 % 7 == 0 ? static_cast<float>(random() % 9) : 0.0f;
  int refused = 0, spoilt = 0;
  for (int round = 0; round < 4; ++round)
    for (std::size_t position = 0; position < 2000; ++position)
      for (const auto flip : {std::byte{0xff}, std::byte{0x01}}) {
        Reducer reducer(layout, {.compressor = GetParam(), .world_size = 2});
        std::vector<float> gradient = input;
        bool beyond = true;
        try {
          reduce_with_twin(reducer, gradient, [&](int n, std::span<std::byte> received) {
            if (n != round || position >= received.size()) return;
            received[position] ^= flip;
            beyond = false;
            ++spoilt;
          });
        } catch (const PayloadError&) {
          ++refused;
        }
        if (beyond) position = 2000;
      }
  EXPECT_GT(spoilt, 50);
  EXPECT_GT(refused, 0);
}

INSTANTIATE_TEST_SUITE_P(Specs, S2ForeignBytes,
                         ::testing::Values("s2:mode=exact", "s2:mode=gather", "s2:mode=split", "s2:mode=peel", "coordinates", "sparcml"));

}  // namespace
}  // namespace thinwire::testing
