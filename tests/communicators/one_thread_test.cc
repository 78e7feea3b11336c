// A whole group within one thread, whose time passes only while it naps: what a simulated network asks of the message engine.
#include <gtest/gtest.h>

#include <memory>

#include "failure_checks.h"
#include "post_office.h"

namespace thinwire {
namespace {

using namespace std::chrono_literals;

using Time = std::shared_ptr<std::chrono::nanoseconds>;

class TimedMessenger final : public PostMessenger {
 public:
  TimedMessenger(std::shared_ptr<PostOffice> office, int rank, int world_size, Time time)
      : PostMessenger(std::move(office), rank, world_size), time_(std::move(time)) {}
  std::chrono::nanoseconds now() const override { return *time_; }
  void nap(std::chrono::microseconds duration) override { *time_ += duration; }

 private:
  Time time_;
};

class OneThread : public testing::Test {
 protected:
  static constexpr auto kTimeout = std::chrono::minutes(1);
  static constexpr std::size_t kElements = 100'000;  // around a ring

  void make_group(int workers, int lanes, PostOffice::Censor censor = {}) {
    const auto office = std::make_shared<PostOffice>(std::move(censor));
    for (int rank = 0; rank < workers; ++rank)
      workers_.push_back(make_message_communicators(std::make_unique<TimedMessenger>(office, rank, workers, time_), lanes, kTimeout, {},
                                                    MovedBy::kCaller));
  }

  // A sum by all lanes of the workers at once.
  struct Sum {
    Communicator* lane;
    std::vector<float> values;
    Collective collective = {};
    bool ended = false;
    std::string error = {};
  };
  std::vector<Sum> sum_by(std::vector<std::size_t> workers) {
    std::vector<Sum> sums;
    for (const std::size_t worker : workers)
      for (const auto& lane : workers_[worker]) sums.push_back({lane.get(), std::vector<float>(kElements, 1)});
    for (Sum& sum : sums) {
      sum.collective = {.kind = CollectiveKind::kSum, .type = ElementType::kFloat32, .data = bytes_of(sum.values)};
      sum.lane->start(sum.collective);
    }
    while (!std::ranges::all_of(sums, &Sum::ended))
      for (Sum& sum : sums) {
        try {
          if (!sum.ended && !(sum.ended = sum.lane->is_done())) sum.lane->wait();
        } catch (const PeerError& error) {
          sum.ended = true;
          sum.error = error.what();
        }
      }
    return sums;
  }

  Time time_ = std::make_shared<std::chrono::nanoseconds>(0);
  std::vector<Ends> workers_;
};

TEST_F(OneThread, LanesOfAllWorkersMoveAtOnce) {
  make_group(3, 2);
  EXPECT_FALSE(workers_[0][0]->moves_alone());
  for (const Sum& sum : sum_by({0, 1, 2})) {
    EXPECT_EQ(sum.error, "");
    EXPECT_EQ(sum.values, std::vector<float>(kElements, 3));
  }
  EXPECT_LT(*time_, 1s);
  EXPECT_EQ(workers_[0][0]->seconds(), std::chrono::duration<double>(*time_).count());
}

TEST_F(OneThread, LostMessagesEndEverybodyAfterTheTimeout) {
  make_group(3, 1, [sent = 0](int from, int, int channel, PostOffice::Letter&) mutable { return from != 1 || channel != 0 || ++sent < 2; });
  std::string all;
  for (const Sum& sum : sum_by({0, 1, 2})) {
    EXPECT_NE(sum.error, "");
    all += sum.error;
  }
  expect_mentions(all, {"nothing for 60000 ms", "reports"});
  EXPECT_GE(*time_, kTimeout);
  EXPECT_LT(*time_, kTimeout + 1s);
}

TEST_F(OneThread, WorkerThatStandsStillIsNamedAndLearnsOfIt) {
  make_group(3, 1);
  for (const Sum& sum : sum_by({0, 1})) EXPECT_NE(sum.error, "");
  EXPECT_GE(*time_, kTimeout);
  const auto later = *time_;
  const Sum late = sum_by({2})[0];
  expect_mentions(late.error, {"reports", "sent nothing for 60000 ms"});
  EXPECT_LT(*time_ - later, 1s);
}

TEST_F(OneThread, WorkerThatLeavesIsMissedAtOnce) {
  make_group(3, 1);
  workers_[1].clear();
  for (const Sum& sum : sum_by({0, 2})) expect_mentions(sum.error, {"worker 1 has left"});
  EXPECT_LT(*time_, 1s);
}

// Threads and callers move messages of one group.
TEST(MixedGroup, WorkersMayMoveMessagesInDifferentWays) {
  const auto office = std::make_shared<PostOffice>();
  Ends group;
  for (int rank = 0; rank < 4; ++rank)
    group.push_back(std::move(make_message_communicators(std::make_unique<PostMessenger>(office, rank, 4), 1, 1h, {},
                                                         rank % 2 ? MovedBy::kCaller : MovedBy::kThread)[0]));
  const auto errors = run_workers(group, [](Communicator& communicator, std::size_t) {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> values(round % 2 ? 10 : 30'000, 1);
      sum(communicator, values);
      EXPECT_EQ(values, std::vector<float>(values.size(), 4));
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(4));
}

}  // namespace
}  // namespace thinwire
