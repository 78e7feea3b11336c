// Payloads of unequal lengths: one round where they are as long as foreseen, two where not, and the same bytes in either case.
#include "core/varied.h"

#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/scratch.h"
#include "core/thread_pool.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

using Bytes = std::vector<std::byte>;

// What a network does with gathers and scatters.
void deliver(std::span<const Collective* const> posted) {
  for (std::size_t to = 0; to < posted.size(); ++to) {
    const std::size_t part = posted[to]->result.size() / posted.size();
    for (std::size_t from = 0; from < posted.size(); ++from) {
      ASSERT_EQ(posted[from]->data.size(), posted[to]->data.size());
      const std::size_t offset = posted[to]->kind == CollectiveKind::kScatter ? to * part : 0;
      if (part > 0) std::memcpy(posted[to]->result.data() + from * part, posted[from]->data.data() + offset, part);
    }
  }
}

// Some workers in one thread.
class Group {
 public:
  explicit Group(std::size_t workers) : threads_(1), scratch_(workers), payloads_(workers) {
    for (std::size_t rank = 0; rank < workers; ++rank) {
      contexts_.emplace_back(static_cast<int>(rank), static_cast<int>(workers), 0, scratch_[rank], threads_);
      payloads_[rank].resize(workers);
    }
  }

  // Returns the rounds it took.
  template <class Make>
  int run(const Make& make) {
    std::vector<Exchange> exchanges;
    for (std::size_t rank = 0; rank < contexts_.size(); ++rank)
      exchanges.push_back(make(rank, std::span(payloads_[rank]), contexts_[rank]));
    for (int rounds = 0;; ++rounds) {
      std::vector<const Collective*> posted;
      for (Exchange& exchange : exchanges)
        if (const Collective* const collective = exchange.next()) posted.push_back(collective);
      if (posted.empty()) return rounds;
      EXPECT_EQ(posted.size(), exchanges.size());
      deliver(posted);
    }
  }

  Bytes payload(std::size_t to, std::size_t from) const { return {payloads_[to][from].begin(), payloads_[to][from].end()}; }

 private:
  ThreadPool threads_;
  std::vector<Scratch> scratch_;
  std::vector<Context> contexts_;
  std::vector<std::vector<std::span<const std::byte>>> payloads_;
};

Bytes random_bytes(std::mt19937& random, std::size_t most) {
  Bytes bytes(random() % (most + 1));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Varied, WhatIsGatheredIsWhatWasSent) {
  std::mt19937 random(1);
  for (const std::size_t workers : {1u, 2u, 3u, 5u})
    for (const std::size_t usual : {0u, 1u, 20u, 50u, 60u}) {
      constexpr std::size_t kMost = 50;
      std::vector<Bytes> sent;
      std::size_t longest = 0;
      for (std::size_t rank = 0; rank < workers; ++rank) longest = std::max(longest, sent.emplace_back(random_bytes(random, kMost)).size());
      Group group(workers);
      const int rounds = group.run([&](std::size_t rank, auto payloads, Context& context) {
        return gather_varied(sent[rank], {usual, kMost}, payloads, context);
      });
      EXPECT_EQ(rounds, longest > usual ? 2 : 1);
      for (std::size_t to = 0; to < workers; ++to)
        for (std::size_t from = 0; from < workers; ++from) EXPECT_EQ(group.payload(to, from), sent[from]);
    }
}

TEST(Varied, WhatIsScatteredArrivesWhereItBelongs) {
  std::mt19937 random(2);
  for (const std::size_t workers : {1u, 2u, 3u, 5u})
    for (const std::size_t usual : {0u, 1u, 20u, 50u}) {
      constexpr std::size_t kMost = 50;
      std::vector<std::vector<Bytes>> sent(workers);
      std::vector<std::vector<std::span<const std::byte>>> shards(workers);
      std::size_t longest = 0;
      for (std::size_t from = 0; from < workers; ++from) {
        for (std::size_t to = 0; to < workers; ++to) sent[from].push_back(random_bytes(random, kMost));
        for (const Bytes& shard : sent[from]) {
          shards[from].emplace_back(shard);
          longest = std::max(longest, shard.size());
        }
      }
      Group group(workers);
      std::vector<std::size_t> found(workers);
      const int rounds = group.run([&](std::size_t rank, auto payloads, Context& context) {
        return scatter_varied(shards[rank], {usual, kMost}, payloads, found[rank], context);
      });
      EXPECT_EQ(rounds, longest > usual ? 2 : 1);
      for (const std::size_t said : found) EXPECT_EQ(said, longest);
      for (std::size_t to = 0; to < workers; ++to)
        for (std::size_t from = 0; from < workers; ++from) EXPECT_EQ(group.payload(to, from), sent[from][to]);
    }
}

class VariedAlone : public ::testing::Test {
 protected:
  // What worker 0 of two makes of these announcements: of its own and of the other's.
  void expect_refused(std::array<std::uint32_t, 4> announced) {
    Exchange exchange = gather_varied(mine_, {0, 10}, payloads_, context_);
    std::memcpy(exchange.next()->result.data(), announced.data(), sizeof announced);
    EXPECT_THROW(exchange.next(), PayloadError);
  }

  Scratch scratch_;
  ThreadPool threads_{1};
  Context context_{{.rank = 0, .world_size = 2}, scratch_, threads_};
  Bytes mine_ = Bytes(3, std::byte{7});
  std::array<std::span<const std::byte>, 2> payloads_;
};

TEST_F(VariedAlone, RefusesAnImpossibleLength) { expect_refused({3, 3, 11, 11}); }
TEST_F(VariedAlone, RefusesALengthBeyondItsSendersLongest) { expect_refused({3, 3, 5, 4}); }
// It says how much room there is for the payload.
TEST_F(VariedAlone, RefusesAnotherLengthThanItsOwn) { expect_refused({2, 2, 5, 5}); }
// To all it sends the same.
TEST_F(VariedAlone, RefusesAnotherLongestThanItsSendersPayload) { expect_refused({3, 3, 4, 5}); }

TEST_F(VariedAlone, RefusesFillingsThatAreNotZeros) {
  for (const bool in_second_round : {false, true}) {
    const std::size_t usual = in_second_round ? 2 : 5, part = 8 + usual;
    Exchange exchange = gather_varied(mine_, {usual, 10}, payloads_, context_);
    const auto received = exchange.next()->result;
    std::ranges::fill(received, std::byte{0});
    const std::array<std::uint32_t, 2> own = {3, 3}, other = in_second_round ? std::array<std::uint32_t, 2>{4, 4} : own;
    std::memcpy(received.data(), own.data(), sizeof own);
    std::memcpy(received.data() + part, other.data(), sizeof other);
    if (in_second_round) {
      const auto rests = exchange.next()->result;  // two bytes of each, of which this worker has one
      std::ranges::fill(rests, std::byte{0});
      rests[1] = std::byte{1};
    } else {
      received[part + 8 + 3] = std::byte{1};
    }
    EXPECT_THROW(exchange.next(), PayloadError);
  }
}

}  // namespace
}  // namespace thinwire
