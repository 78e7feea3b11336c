// Every form of coroutine that exchanges use. g++ 12 destroys some co_await operands twice; objects that count their
// births and deaths, and the address sanitizer's run of these tests, would show it.
#include "core/exchange.h"

#include <array>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/context.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

struct Counted {
  static inline int alive = 0;
  Counted() { ++alive; }
  Counted(const Counted&) { ++alive; }
  ~Counted() { --alive; }
  std::string text = "long enough not to be stored in place, whatever the library";
};

class ExchangeTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(Counted::alive, 0); }

  Scratch scratch_;
  ThreadPool threads_{1};
  Context context_{{.rank = 0, .world_size = 2}, scratch_, threads_};
};

Exchange two_rounds(Context& context, std::vector<float>& values, Counted) {
  const Counted local;
  Await first = context.sum(std::span<float>(values));
  co_await first;
  values.push_back(1);
  Await second = context.max(std::span<float>(values));
  co_await second;
  values.push_back(2);
}

Exchange nested(Context& context, std::vector<float>& values) {
  Counted counted;
  Exchange inner = two_rounds(context, values, counted);
  co_await inner;
  Exchange again = two_rounds(context, values, std::move(counted));
  co_await again;
  Await last = context.broadcast(std::as_writable_bytes(std::span(values)), 1);
  co_await last;
}

Exchange twice_nested(Context& context, std::vector<float>& values) {
  for (int i = 0; i < 3; ++i) {
    Exchange inner = nested(context, values);
    co_await inner;
  }
}

Exchange nothing(Counted) { co_return; }

Exchange failing(Context& context, std::vector<float>& values) {
  const Counted counted;
  Await round = context.sum(std::span<float>(values));
  co_await round;
  throw std::runtime_error("as planned");
}

Exchange around_failing(Context& context, std::vector<float>& values, bool& seen) {
  const Counted counted;
  try {
    Exchange inner = failing(context, values);
    co_await inner;
  } catch (const std::runtime_error&) {
    seen = true;
  }
  Await round = context.max(std::span<float>(values));
  co_await round;
  Exchange fatal = failing(context, values);
  co_await fatal;
}

std::vector<CollectiveKind> kinds_of(Exchange exchange) {
  std::vector<CollectiveKind> kinds;
  while (const Collective* collective = exchange.next()) kinds.push_back(collective->kind);
  EXPECT_EQ(exchange.next(), nullptr);
  return kinds;
}

TEST_F(ExchangeTest, CollectivesComeInOrderAndPointAtTheData) {
  std::vector<float> values{3};
  Exchange exchange = two_rounds(context_, values, {});
  const Collective* collective = exchange.next();
  ASSERT_NE(collective, nullptr);
  EXPECT_EQ(collective->kind, CollectiveKind::kSum);
  EXPECT_EQ(collective->type, ElementType::kFloat32);
  EXPECT_EQ(collective->data.data(), reinterpret_cast<std::byte*>(values.data()));
  EXPECT_EQ(collective->data.size(), sizeof(float));
  collective = exchange.next();
  ASSERT_NE(collective, nullptr);
  EXPECT_EQ(collective->kind, CollectiveKind::kMax);
  EXPECT_EQ(collective->data.size(), 2 * sizeof(float));
  EXPECT_EQ(exchange.next(), nullptr);
  EXPECT_EQ(exchange.next(), nullptr);
  EXPECT_EQ(values, (std::vector<float>{3, 1, 2}));
}

TEST_F(ExchangeTest, NestedExchangesGoOnWithTheirCaller) {
  using enum CollectiveKind;
  std::vector<float> values;
  EXPECT_EQ(kinds_of(nested(context_, values)), (std::vector{kSum, kMax, kSum, kMax, kBroadcast}));
  EXPECT_EQ(values.size(), 4u);
  values.clear();
  EXPECT_EQ(kinds_of(twice_nested(context_, values)).size(), 15u);
  EXPECT_EQ(values.size(), 12u);
}

TEST_F(ExchangeTest, AnExchangeWithoutRoundsIsDoneAtOnce) {
  EXPECT_TRUE(kinds_of(nothing({})).empty());
  EXPECT_TRUE(kinds_of(Exchange()).empty());
}

TEST_F(ExchangeTest, DestroyedAtAnyAwaitItCleansUp) {
  for (int rounds = 0; rounds <= 16; ++rounds) {
    std::vector<float> values;
    Exchange exchange = twice_nested(context_, values);
    for (int i = 0; i < rounds; ++i) exchange.next();
  }
}

TEST_F(ExchangeTest, ExceptionsPassThroughNesting) {
  std::vector<float> values{1};
  bool seen = false;
  Exchange exchange = around_failing(context_, values, seen);
  EXPECT_EQ(exchange.next()->kind, CollectiveKind::kSum);
  EXPECT_EQ(exchange.next()->kind, CollectiveKind::kMax);
  EXPECT_TRUE(seen);
  EXPECT_EQ(exchange.next()->kind, CollectiveKind::kSum);
  EXPECT_THROW(exchange.next(), std::runtime_error);
  EXPECT_EQ(exchange.next(), nullptr);
}

Exchange many_rounds(Context& context, std::vector<float>& values, int rounds) {
  const Counted counted;
  for (int i = 0; i < rounds; ++i) {
    Await round = context.sum(std::span<float>(values));
    co_await round;
    Exchange inner = nothing({});
    co_await inner;
  }
}

TEST_F(ExchangeTest, RoundsAreWithoutNumber) {
  std::vector<float> values{1};
  EXPECT_EQ(kinds_of(many_rounds(context_, values, 10000)).size(), 10000u);
}

TEST_F(ExchangeTest, AnExchangeThatNeverRanCleansUp) {
  std::vector<float> values;
  const Exchange never = two_rounds(context_, values, {});
  EXPECT_EQ(Counted::alive, 1);  // the argument, in the frame
}

TEST_F(ExchangeTest, DestroyedInsideAFailureThatWasCaughtItCleansUp) {
  for (int rounds = 0; rounds <= 3; ++rounds) {
    std::vector<float> values{1};
    bool seen = false;
    Exchange exchange = around_failing(context_, values, seen);
    for (int i = 0; i < rounds; ++i) exchange.next();
  }
}

TEST_F(ExchangeTest, MovedExchangesGoOn) {
  std::vector<float> values;
  Exchange exchange = twice_nested(context_, values);
  exchange.next();
  Exchange moved = std::move(exchange);
  EXPECT_EQ(kinds_of(std::move(moved)).size(), 14u);
}

TEST_F(ExchangeTest, ACommitPointIsNoCollective) {
  bool committed = false;
  const auto body = [](Context& context, bool is_part, bool& done) -> Exchange {
    CommitPoint ready = context.commit_point(is_part);
    co_await ready;
    done = true;
  };
  Exchange whole = body(context_, false, committed);
  EXPECT_TRUE(CommitPoint::is(whole.next()));
  EXPECT_FALSE(committed);
  EXPECT_EQ(whole.next(), nullptr);
  EXPECT_TRUE(committed);
  committed = false;
  Exchange part = body(context_, true, committed);
  EXPECT_EQ(part.next(), nullptr);
  EXPECT_TRUE(committed);
}

}  // namespace
}  // namespace thinwire
