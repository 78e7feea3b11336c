// Payloads that another worker, or the network, has spoilt.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compressors/registry.h"
#include "reducer/reseal.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

using ::testing::AllOf, ::testing::HasSubstr, ::testing::IsEmpty, ::testing::Not;

// Plays the second of two workers: sends what `spoil` makes of this worker's own payload.
template <class Spoil>
void reduce_with_spoilt_peer(Reducer& reducer, std::vector<float>& gradient, Spoil spoil) {
  Reduction reduction = reducer.reduce(parameters_of(reducer.layout(), gradient));
  while (const Collective* collective = reduction.next()) {
    if (collective->kind != CollectiveKind::kGather) continue;
    const std::size_t size = collective->data.size();
    std::memcpy(collective->result.data(), collective->data.data(), size);
    std::memcpy(collective->result.data() + size, collective->data.data(), size);
    spoil(collective->result.subspan(size));
  }
}

std::vector<std::string> gathering_specs() {
  std::vector<std::string> specs;
  for (const CompressorInfo& info : compressors()) {
    const bool chooses = std::ranges::any_of(info.parameters, [](const SpecParameter& parameter) { return parameter.name == "reduce"; });
    const std::string spec = info.name + (chooses ? ":reduce=gather" : "");  // scatter_test.cc has the other
    const ChosenCompressor chosen = make_compressor(spec);
    // Rows' own messages: s2_foreign_bytes_test.cc.
    if (chosen.claims.aggregation == Aggregation::kGather && chosen.compressor->unit() != Unit::kRow) specs.push_back(spec);
  }
  specs.emplace_back("casq:rate=6,feedback=off,reduce=gather");
  return specs;
}

class ForeignBytes : public ::testing::TestWithParam<std::string> {
 protected:
  ForeignBytes() {
    options_.compressor = GetParam();
    options_.world_size = 2;
    warm_up_ = std::make_unique<Reducer>(layout_, options_);
    // Until lengths are as foreseen; where they are drawn, it may take some more steps.
    for (int step = 0; step < 4 || (step < 40 && block().end == block().begin); ++step) {
      std::vector<float> gradient = input();
      reduce_with_spoilt_peer(*warm_up_, gradient, [](std::span<std::byte>) {});
      state_ = warm_up_->state();
    }
  }
  std::vector<float> input() const { return make_gradients("laplace", 1, layout_.elements())[0]; }

  // How long the other worker's block is, and where in it the message: codes of any length have more around it.
  struct Block {
    std::size_t bytes = 0, begin = 0, end = 0;
    bool holds(std::size_t position) const { return position >= begin && position < end; }
  };
  Block block() {
    Block found;
    error_of([&](std::span<std::byte> bytes) {
      const auto message = sealed_in(bytes);
      found.bytes = bytes.size();
      found.begin = message.empty() ? bytes.size() : static_cast<std::size_t>(message.data() - bytes.data());
      found.end = found.begin + message.size();
    });
    return found;
  }

  // With what a step ends after the other worker's message was spoilt: an error, which leaves the memory as it was, or a finite
  // mean and no error, or a bucket that is said not to be finite.
  template <class Spoil>
  std::string error_of(const Spoil& spoil) {
    Reducer reducer(layout_, options_);
    reducer.load_state(state_);
    std::vector<float> gradient = input();
    try {
      reduce_with_spoilt_peer(reducer, gradient, spoil);
    } catch (const PayloadError& error) {
      const auto after = reducer.state();
      for (std::size_t p = 0; p < after.size(); ++p) {
        EXPECT_EQ(after[p].residual, state_[p].residual);
        EXPECT_EQ(after[p].steps, state_[p].steps);
      }
      return error.what();
    }
    const bool flagged = reducer.counters().non_finite > 0;
    for (const float value : gradient) EXPECT_TRUE(flagged || std::isfinite(value));
    return "";
  }

  const Layout layout_{{{"a", {40, 30}}, {"b", {70}}}};
  ReducerOptions options_;
  std::unique_ptr<Reducer> warm_up_;
  std::vector<ParameterState> state_;
};

// Every byte of a message, with the lowest, the highest, or all of its bits changed.
TEST_P(ForeignBytes, EveryChangeIsRefused) {
  const Block other = block();
  ASSERT_GT(other.end, other.begin);
  for (std::size_t position = 0; position < other.bytes; ++position)
    for (const auto flip : {std::byte{0x01}, std::byte{0x80}, std::byte{0xff}}) {
      const std::string error = error_of([&](std::span<std::byte> message) { message[position] ^= flip; });
      ASSERT_THAT(error, HasSubstr("worker 1")) << position;
      if (other.holds(position)) {
        ASSERT_THAT(error, HasSubstr("the message of worker 1")) << position;
      }
      if (other.holds(position) && position >= other.begin + kChecksumAt) {
        ASSERT_THAT(error, HasSubstr("was changed on its way")) << position;
      }
    }
}

// What another encoder might send: every byte of the message, all bits flipped, under a right checksum.
TEST_P(ForeignBytes, EveryByteIsRefusedOrDecodedToSomethingFinite) {
  const Block other = block();
  std::size_t refused = 0;
  for (std::size_t position = other.begin; position < other.end; ++position) {
    const std::string error = error_of([&](std::span<std::byte> message) {
      spoil_and_reseal(message, 1, [&](std::span<std::byte> all) { all[position] ^= std::byte{0xff}; });
    });
    refused += error.empty() ? 0 : 1;
    if (position >= other.begin + kSealedHeader) {
      ASSERT_THAT(error, Not(HasSubstr("on its way"))) << position;
    }
  }
  EXPECT_GE(refused, kSealedHeader);
  // Behind the header, hardly anything of most codes of a fixed length is refused. A decoder of any length ends elsewhere after most changes,
  // but not after all. Of 64 entries bmucsc sends mostly levels, which ascend, and places, which have an order too.
  const std::size_t behind = other.end - other.begin - kSealedHeader;
  const bool has_fixed_length = other.begin == 0;
  const bool has_mostly_order = GetParam().starts_with("bmucsc");
  EXPECT_LT(refused - kSealedHeader, (!has_fixed_length ? 4 : has_mostly_order ? 3 : 2) * behind / 5);
}

TEST_P(ForeignBytes, NotANumberInATableIsRefused) {
  const std::string error = error_of([](std::span<std::byte> message) {
    const auto nan = std::bit_cast<float>(0xffffffffU);  // that a unit of one byte is not either
    spoil_and_reseal(message, 1, [&](std::span<std::byte> all) {
      const std::size_t begin = static_cast<std::size_t>(sealed_in(all).data() - all.data());
      std::memcpy(all.data() + begin + kSealedHeader + 1, &nan, sizeof nan);
    });
  });
  EXPECT_THAT(error, AllOf(Not(IsEmpty()), Not(HasSubstr("on its way"))));
}

INSTANTIATE_TEST_SUITE_P(EveryGathered, ForeignBytes, ::testing::ValuesIn(gathering_specs()));

}  // namespace
}  // namespace thinwire::testing
