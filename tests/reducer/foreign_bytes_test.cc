// Payloads that another worker, or the network, has spoilt.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace thinwire::testing {
namespace {

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
  for (const CompressorInfo& info : compressors())
    // Rows' own messages: s2_foreign_bytes_test.cc.
    if (info.aggregation == Aggregation::kGather && info.unit != Unit::kRow) specs.push_back(info.name + ":reduce=gather");  // scatter_test.cc has the other
  return specs;
}

class ForeignBytes : public ::testing::TestWithParam<std::string> {
 protected:
  ForeignBytes() {
    options_.compressor = GetParam();
    options_.world_size = 2;
    warm_up_ = std::make_unique<Reducer>(layout_, options_);
    std::vector<float> gradient = input();
    reduce_with_spoilt_peer(*warm_up_, gradient, [](std::span<std::byte>) {});
    state_ = warm_up_->state();
  }
  std::vector<float> input() const { return make_gradients("laplace", 1, layout_.elements())[0]; }

  const Layout layout_{{{"a", {40, 30}}, {"b", {70}}}};
  ReducerOptions options_;
  std::unique_ptr<Reducer> warm_up_;
  std::vector<ParameterState> state_;
};

// Every byte of the message, all bits flipped: an error that leaves the residual alone, or a finite mean.
TEST_P(ForeignBytes, EveryByteIsRefusedOrDecodedToSomethingFinite) {
  int refused = 0;
  for (std::size_t position = 0;; ++position) {
    Reducer reducer(layout_, options_);
    reducer.load_state(state_);
    std::vector<float> gradient = input();
    bool beyond = false;
    try {
      reduce_with_spoilt_peer(reducer, gradient, [&](std::span<std::byte> message) {
        beyond = position >= message.size();
        if (!beyond) message[position] ^= std::byte{0xff};
      });
      const bool flagged = reducer.counters().non_finite > 0;
      for (const float value : gradient) ASSERT_TRUE(flagged || std::isfinite(value)) << position;
    } catch (const PayloadError&) {
      ++refused;
      const auto after = reducer.state();
      for (std::size_t p = 0; p < after.size(); ++p) {
        ASSERT_EQ(after[p].residual, state_[p].residual) << position;
        ASSERT_EQ(after[p].steps, state_[p].steps);
      }
    }
    if (beyond) break;
  }
  EXPECT_GE(refused, 7);  // the header's bytes at least
}

TEST_P(ForeignBytes, NotANumberInATableIsRefused) {
  Reducer reducer(layout_, options_);
  std::vector<float> gradient = input();
  EXPECT_THROW(reduce_with_spoilt_peer(reducer, gradient,
                                       [](std::span<std::byte> message) {
                                         const float nan = std::nanf("");
                                         std::memcpy(message.data() + 9, &nan, sizeof nan);
                                       }),
               PayloadError);
}

INSTANTIATE_TEST_SUITE_P(EveryGathered, ForeignBytes, ::testing::ValuesIn(gathering_specs()));

}  // namespace
}  // namespace thinwire::testing
