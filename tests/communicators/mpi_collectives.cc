// Every collective between MPI processes, to be run by mpirun; exits with 1 where a result is wrong. With an argument MPI is started for
// one thread alone, which then moves the messages of all lanes.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "thinwire/errors.h"
#include "thinwire/mpi.h"

namespace thinwire {
namespace {

std::vector<std::int32_t> values_of(int rank, std::size_t elements) {
  std::vector<std::int32_t> values(elements);
  std::iota(values.begin(), values.end(), 1000 * rank);
  return values;
}

std::span<std::byte> bytes_of(std::vector<std::int32_t>& values) { return std::as_writable_bytes(std::span(values)); }

void expect(bool right, const std::string& what) {
  if (!right) throw Error(what + " is wrong");
}

void try_all(Communicator& group, std::size_t elements) {
  const int rank = group.rank(), workers = group.world_size();
  const std::string name = " of " + std::to_string(elements);
  const auto mine = values_of(rank, elements);

  auto sum = mine;
  group.perform({.kind = CollectiveKind::kSum, .type = ElementType::kInt32, .data = bytes_of(sum)});
  for (std::size_t i = 0; i < elements; ++i)
    expect(sum[i] == workers * static_cast<std::int32_t>(i) + 500 * workers * (workers - 1), "sum" + name);

  auto max = mine;
  group.perform({.kind = CollectiveKind::kMax, .type = ElementType::kInt32, .data = bytes_of(max)});
  expect(max == values_of(workers - 1, elements), "max" + name);

  for (int root = 0; root < workers; ++root) {
    auto broadcast = mine;
    group.perform({.kind = CollectiveKind::kBroadcast, .root = root, .data = bytes_of(broadcast)});
    expect(broadcast == values_of(root, elements), "broadcast" + name);
  }

  auto all = mine;
  std::vector<std::int32_t> gathered(elements * static_cast<std::size_t>(workers)), everyones;
  group.perform({.kind = CollectiveKind::kGather, .data = bytes_of(all), .result = bytes_of(gathered)});
  for (int each = 0; each < workers; ++each) {
    const auto values = values_of(each, elements);
    everyones.insert(everyones.end(), values.begin(), values.end());
  }
  expect(gathered == everyones, "gather" + name);

  auto shards = values_of(rank, elements * static_cast<std::size_t>(workers));
  std::vector<std::int32_t> received(shards.size());
  group.perform({.kind = CollectiveKind::kScatter, .data = bytes_of(shards), .result = bytes_of(received)});
  for (int from = 0; from < workers; ++from) {
    const auto sent = values_of(from, shards.size());
    const auto shard = static_cast<std::ptrdiff_t>(elements);
    expect(std::equal(sent.begin() + rank * shard, sent.begin() + (rank + 1) * shard, received.begin() + from * shard),
           "scatter" + name);
  }
}

void try_lanes() {
  auto lanes = make_mpi_communicators({.lanes = 2, .timeout = std::chrono::seconds(60)});
  std::vector<std::thread> threads;
  std::vector<std::string> errors(lanes.size());
  for (std::size_t lane = 0; lane < lanes.size(); ++lane)
    threads.emplace_back([&, lane] {
      try {
        for (const std::size_t elements : {0, 1, 7, 4097, 300'000}) try_all(*lanes[lane], elements);
      } catch (const std::exception& error) {
        errors[lane] = error.what();
        lanes[lane]->abandon();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors)
    if (!error.empty()) throw Error(error);
}

// Two lanes at once, for which workers wait in different orders; and a long collective that only moves because the other lane's is waited for.
void try_one_thread() {
  auto lanes = make_mpi_communicators({.lanes = 2, .timeout = std::chrono::seconds(60)});
  expect(lanes[0]->world_size() == 1 || !lanes[0]->moves_alone(), "whoever moves messages, which");
  for (const auto& lane : lanes)
    for (const std::size_t elements : {0, 1, 7, 4097, 300'000}) try_all(*lane, elements);
  const int rank = lanes[0]->rank(), workers = lanes[0]->world_size();
  for (int round = 0; round < 10; ++round) {
    auto sum = values_of(rank, 100'000), max = values_of(rank, 5);
    const Collective adding = {.kind = CollectiveKind::kSum, .type = ElementType::kInt32, .data = bytes_of(sum)};
    const Collective comparing = {.kind = CollectiveKind::kMax, .type = ElementType::kInt32, .data = bytes_of(max)};
    lanes[0]->start(adding);
    lanes[1]->start(comparing);
    for (const int lane : {rank % 2, 1 - rank % 2})
      while (!lanes[static_cast<std::size_t>(lane)]->is_done()) lanes[static_cast<std::size_t>(lane)]->wait();
    expect(sum[99'999] == workers * 99'999 + 500 * workers * (workers - 1), "sum of two lanes");
    expect(max == values_of(workers - 1, 5), "max of two lanes");
  }
}

// One group after the other: what workers of an earlier one say as they leave, at different times, must not come to a later one.
void try_again_and_again(Progress progress) {
  for (int round = 0; round < 200; ++round) {
    const auto lanes = make_mpi_communicators({.timeout = std::chrono::seconds(60), .progress = progress});
    const int rank = lanes[0]->rank(), workers = lanes[0]->world_size();
    auto max = values_of(rank, 5);
    lanes[0]->perform({.kind = CollectiveKind::kMax, .type = ElementType::kInt32, .data = bytes_of(max)});
    expect(max == values_of(workers - 1, 5), "max of a group among many");
    if (rank >= 2) std::this_thread::sleep_for(std::chrono::microseconds(500 * (round % 4)));
  }
}

}  // namespace
}  // namespace thinwire

int main(int arguments, char**) {
  try {
    const bool one_thread = arguments > 1;
    if (one_thread) MPI_Init(nullptr, nullptr);
    {
      const thinwire::MpiEnvironment environment;
      for (int i = 0; i < 3; ++i) one_thread ? thinwire::try_one_thread() : thinwire::try_lanes();
      thinwire::try_again_and_again(one_thread ? thinwire::Progress::kCaller : thinwire::Progress::kAutomatic);
      if (environment.rank() == 0) std::printf("%d workers: all right\n", environment.world_size());
    }
    if (one_thread) MPI_Finalize();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
