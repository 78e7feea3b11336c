// Compressors that carry S2's packed rows: every pair that is allowed, and that every other is refused.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "compressors/registry.h"
#include "reducer/workers.h"
#include "sanitized.h"

namespace thinwire::testing {
namespace {

// Of several chunks where many rows are used, of a row, of rows that are odd in number and length, and one that is used now and then.
Layout layout() { return Layout({{"embedding", {3000, 48}}, {"row", {1, 70}}, {"odd", {37, 5}}, {"seldom", {300, 16}}}); }

Gradients sparse_rows(const Layout& layout, int workers, unsigned step) {
  std::mt19937 random(step);
  std::normal_distribution<float> normal;
  std::bernoulli_distribution present(step % 3 == 1 ? 0.02 : 0.3);
  Gradients gradients(static_cast<std::size_t>(workers), std::vector<float>(layout.elements(), -0.0f));
  for (auto& gradient : gradients)
    for (std::size_t p = 0; p < layout.parameters().size(); ++p) {
      const auto& shape = layout.parameters()[p].shape;
      const auto rows = static_cast<std::size_t>(shape[0]), row = static_cast<std::size_t>(shape[1]);
      if (layout.parameters()[p].name == "seldom" && step % 2 == 0) continue;
      for (std::size_t r = 0; r < rows; ++r)
        if (present(random))
          for (std::size_t i = 0; i < row; ++i) gradient[layout.offset(p) + r * row + i] = normal(random);
    }
  return gradients;
}

struct Pair {
  const char* carrier;
  double rounding = 1e-5;  // of the largest value: what is lost beside what residuals keep
};

class S2Pairs : public ::testing::TestWithParam<Pair> {};

TEST_P(S2Pairs, MeansAgreeAndNothingIsLost) {
  for (const std::string first : {"s2:mode=exact,feedback=on/", "s2:mode=exact,feedback=on,block=7/"}) {
    std::vector<Gradients> by_one_thread;
    for (const int count : {2, 3})
      for (const int threads : {1, 4}) {
        SCOPED_TRACE(first + ", " + std::to_string(count) + " workers, " + std::to_string(threads) + " threads");
        Workers workers(layout(), count, {.compressor = first + GetParam().carrier, .threads = threads});
        std::vector<double> balance(layout().elements());
        for (unsigned step = 0; step < 5; ++step) {
          Gradients gradients = sparse_rows(layout(), count, step);
          for (const auto& gradient : gradients)
            for (std::size_t i = 0; i < balance.size(); ++i) balance[i] += static_cast<double>(gradient[i]);
          workers.step(gradients);
          for (const auto& mean : gradients)
            ASSERT_EQ(std::memcmp(mean.data(), gradients[0].data(), mean.size() * sizeof(float)), 0) << "at step " << step;
          for (std::size_t i = 0; i < balance.size(); ++i) balance[i] -= count * static_cast<double>(gradients[0][i]);
          std::vector<double> left = balance;
          for (int rank = 0; rank < count; ++rank) {
            const auto residual = workers.residual(rank);
            for (std::size_t i = 0; i < left.size(); ++i) left[i] -= static_cast<double>(residual[i]);
          }
          for (std::size_t i = 0; i < left.size(); ++i) ASSERT_NEAR(left[i], 0, 20 * (step + 1) * GetParam().rounding) << "at step " << step;
          if (threads == 1) by_one_thread.push_back(gradients);
          else ASSERT_EQ(gradients, by_one_thread[by_one_thread.size() - 5 + step]) << "at step " << step;
        }
      }
  }
}

// Without feedback there is no residual to go by: the mean is as near as the carrier claims.
TEST_P(S2Pairs, WithoutFeedbackTheMeanIsNear) {
  const std::string spec = std::string("s2:mode=exact,feedback=off/") + GetParam().carrier;
  for (const int count : {2, 3}) {
    Workers workers(layout(), count, {.compressor = spec, .threads = 2});
    double error = 0, energy = 0;
    for (unsigned step = 0; step < 3; ++step) {
      Gradients gradients = sparse_rows(layout(), count, step);
      std::vector<double> exact(layout().elements());
      for (const auto& gradient : gradients)
        for (std::size_t i = 0; i < exact.size(); ++i) exact[i] += static_cast<double>(gradient[i]) / count;
      workers.step(gradients);
      for (const auto& mean : gradients) ASSERT_EQ(mean, gradients[0]) << "at step " << step;
      for (std::size_t i = 0; i < exact.size(); ++i) {
        error += std::pow(exact[i] - static_cast<double>(gradients[0][i]), 2);
        energy += exact[i] * exact[i];
      }
    }
    EXPECT_LT(error, 0.8 * energy);
    EXPECT_GT(energy, 0);
  }
}

std::string name_of_pair(const ::testing::TestParamInfo<Pair>& info) {
  std::string name = info.param.carrier;
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Carriers, S2Pairs,
    ::testing::Values(Pair{"none"}, Pair{"bf16", 1.0 / 64}, Pair{"fp16", 1.0 / 512}, Pair{"casq:bits=1"}, Pair{"casq:bits=2,reduce=scatter"},
                      Pair{"casq:bits=3,reduce=auto,retrain=2"}, Pair{"casq:budget=2.5"}, Pair{"casq:bits=4,scope=block,precision=bf16"},
                      Pair{"casq:bits=2,table=0.05,assign=hash"}, Pair{"casq:bits=4,signs=apart,tail=0.05,table=0.02,allocate=entropy"},
                      Pair{"qsgd:bits=4,feedback=on"}, Pair{"qsgd:bits=3,bucket=192,norm=l2,feedback=on,reduce=gather"},
                      Pair{"qsgd:bits=5,feedback=on,reduce=scatter"}, Pair{"qsgd:bits=4,feedback=on,reduce=sum"}),
    name_of_pair);

// Whether pieces that are cut anywhere, and of which nothing lasts but what the sender keeps for the carrier, are enough for it.
bool can_carry(const Row& sender, const Row& carrier) {
  const auto compressor = make_compressor(carrier.info.name).compressor;
  if (compressor->unit() != Unit::kElement || compressor->remembers_elements()) return false;
  return sender.sends == Sends::kElements || !compressor->needs_preparation(0);
}

// What takes rows or slices of a parameter would cut packed rows where they must not be.
TEST(Stages, OnlyWhatTakesSingleElementsMayFollow) {
  for (const Row& sender : rows())
    for (const Row& carrier : rows()) {
      const std::string from = sender.info.name, to = carrier.info.name;
      const std::string first = from == "s2" ? "s2:mode=exact" : from, spec = first + "/" + to;
      if (sender.info.takes_stage && can_carry(sender, carrier)) {
        EXPECT_NO_THROW(canonical_spec(spec)) << spec;
        continue;
      }
      try {
        canonical_spec(spec);
        ADD_FAILURE() << spec << " is accepted";
      } catch (const ArgumentError& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("'" + from + "'"), std::string::npos) << text;
        EXPECT_NE(text.find("'" + to + "'"), std::string::npos) << text;
      }
    }
}

TEST(Stages, RowsAreCarriedByElementsOnly) {
  for (const char* refused : {"gradiveq", "gradiveq:refresh=every", "gradiveq/qsgd", "s2", "s2:mode=exact", "s2:mode=exact/casq", "coordinates",
                              "sparcml", "omnireduce"})
    EXPECT_THROW(canonical_spec(std::string("s2:mode=exact/") + refused), ArgumentError) << refused;
  for (const char* mode : {"auto", "gather", "split", "peel", "sketch"})
    EXPECT_THROW(canonical_spec(std::string("s2:mode=") + mode + "/casq"), ArgumentError) << mode;
  EXPECT_EQ(canonical_spec("s2:mode=exact/casq:bits=2").find("s2:mode=exact,"), 0u);
}

}  // namespace
}  // namespace thinwire::testing
