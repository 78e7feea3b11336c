// In steady state a reduction allocates nothing, in any thread.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "core/frame_pool.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int> allocations{0};
std::atomic<std::int64_t> live_bytes{0}, most_bytes{0};

void* allocate(std::size_t bytes, std::size_t alignment) {
  void* const memory = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
  if (!memory) throw std::bad_alloc();
  const std::int64_t live = live_bytes += static_cast<std::int64_t>(malloc_usable_size(memory));
  if (counting) {
    ++allocations;
    for (std::int64_t most = most_bytes; live > most && !most_bytes.compare_exchange_weak(most, live);) {
    }
  }
  return memory;
}

void give_back(void* memory) noexcept {
  live_bytes -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, 16); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return allocate(bytes, static_cast<std::size_t>(alignment)); }
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }

namespace thinwire::testing {
namespace {

TEST(Allocation, CountsWhatItShould) {
  counting = true;
  { const std::vector<int> some(10); }
  counting = false;
  EXPECT_EQ(allocations.exchange(0), 1);
}

class Allocation : public ::testing::TestWithParam<const char*> {};

// How many frames are in use at once depends on how the workers' threads meet; none of the many ways may find the pool empty.
void fill_frame_pool() {
  constexpr std::size_t kLargest = 8192, kStep = 256;
  std::vector<std::pair<void*, std::size_t>> frames;
  for (std::size_t bytes = kStep; bytes <= kLargest; bytes += kStep)
    for (int i = 0; i < 8; ++i) frames.emplace_back(take_frame(bytes), bytes);
  for (const auto& [frame, bytes] : frames) return_frame(frame, bytes);
}

// In two workers together, once everything has been used. Trainings of clusters, one in 100 steps, do allocate: they search, and own what they find.
int allocations_in_steady_state(const std::string& spec, int threads) {
  fill_frame_pool();
  constexpr int kSteps = 12, kWarmUp = 3;
  const Layout layout({{"a", {900, 200}}, {"b", {64}}, {"c", {100, 100}}});
  in_parallel(2, [&](int rank, Communicator& communicator) {
    Reducer reducer(layout, {.compressor = spec, .rules = {{"b", "none"}}, .rank = rank, .world_size = 2, .threads = threads});
    std::vector<float> gradient = make_gradients("normal", 1, layout.elements())[0];
    const auto buckets = {parameters_of(layout, gradient, 0, 2), parameters_of(layout, gradient, 2, 3)};
    for (int step = 0; step < kSteps; ++step) {
      communicator.perform({.kind = CollectiveKind::kBroadcast, .data = {}, .result = {}});  // nobody is still warming up
      if (step == kWarmUp) counting = true;
      for (const auto& bucket : buckets) {
        Reduction reduction = reducer.reduce(bucket);
        run(reduction, communicator);
      }
    }
    communicator.perform({.kind = CollectiveKind::kBroadcast, .data = {}, .result = {}});
    counting = false;
  });
  return allocations.exchange(0);
}

TEST_P(Allocation, NoneInSteadyState) {
  for (const int threads : {1, 3}) EXPECT_EQ(allocations_in_steady_state(GetParam(), threads), 0) << threads << " threads";
}

INSTANTIATE_TEST_SUITE_P(Every, Allocation, ::testing::Values("none", "bf16:feedback=on", "fp16", "casq:bits=2", "casq:bits=4,feedback=off",
                                                              "casq:reduce=scatter", "casq:bits=4,table=0.02", "casq:bits=4,table=0.02,assign=hash,reduce=scatter",
                                                              "casq:bits=8,scope=block,precision=bf16,table=0.05,allocate=entropy", "casq:budget=2.5,table=0.02",
                                                              "casq:bits=4,signs=apart,tail=0.05,table=0.02,allocate=entropy-centre-density",
                                                              "qsgd:reduce=gather", "qsgd:reduce=sum", "topk", "topk:density=0.1,values=bf16,reduce=scatter",
                                                              "randomk", "randomk:feedback=off", "s2:mode=auto", "s2:mode=gather", "s2:mode=split",
                                                              "s2:mode=peel,feedback=on", "s2:mode=sketch",
                                                              "s2:mode=exact/casq:bits=2", "casq:rate=1", "casq:rate=0.5,reduce=scatter", "s2:mode=exact/casq:rate=1", "sparcml", "coordinates", "gradiveq:ratio=8,learn=1,lag=0,use=100,smallest=0",
                                                              "gradiveq:rate=2,learn=1,lag=0,use=100,smallest=0,feedback=on",
                                                              "gradiveq:ratio=8,learn=1,lag=0,use=100,smallest=0/qsgd:bits=4,reduce=sum",
                                                              "gradiveq:ratio=1,learn=1,lag=0,use=100,smallest=0/casq:rate=1",
                                                              "gradiveq:refresh=every,ratio=8,smallest=0",
                                                              "gradiveq:refresh=every,ratio=4,smallest=0,feedback=on/qsgd:bits=6,reduce=sum"));

// The most bytes that the first reduction of one bucket of so many elements has in use at once, in two workers together.
std::int64_t bytes_of_first_reduction(std::size_t elements) {
  const Layout layout = Layout::flat(elements);
  std::int64_t before = 0;
  in_parallel(2, [&](int rank, Communicator& communicator) {
    Reducer reducer(layout, {.compressor = "casq:bits=2,feedback=off", .rank = rank, .world_size = 2});
    std::vector<float> gradient(elements, 1.0f);
    const auto bucket = parameters_of(layout, gradient);
    communicator.perform({.kind = CollectiveKind::kBroadcast, .data = {}, .result = {}});
    if (rank == 0) before = most_bytes = live_bytes.load();
    communicator.perform({.kind = CollectiveKind::kBroadcast, .data = {}, .result = {}});
    counting = true;
    Reduction reduction = reducer.reduce(bucket);
    run(reduction, communicator);
    communicator.perform({.kind = CollectiveKind::kBroadcast, .data = {}, .result = {}});
    counting = false;
  });
  allocations = 0;
  return most_bytes - before;
}

// Scratch holds the codes of a bucket's messages until all are committed together, and nothing as long as the gradient.
TEST(Allocation, ScratchGrowsWithTheBucketsCodesAlone) {
  constexpr std::int64_t kMessage = std::int64_t{1} << 23;
  const std::int64_t one = bytes_of_first_reduction(kMessage), three = bytes_of_first_reduction(3 * kMessage);
  EXPECT_LT(one, 2 * kMessage);  // both workers: their own code and two gathered ones, 2 bits an element each
  EXPECT_LT(three, 3 * one + 2 * 3 * 512 * 200);  // and up to 200 bytes a chunk: its plan, piece and thresholds
}

}  // namespace
}  // namespace thinwire::testing
