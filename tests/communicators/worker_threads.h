// Runs the workers of a group, one thread each.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "thinwire/communicator.h"
#include "thinwire/errors.h"

namespace thinwire {

// Of all workers of a group, in rank order.
using Ends = std::vector<std::unique_ptr<Communicator>>;

// Calls work(communicator, rank) on every worker's own thread. Returns, in rank order, what PeerError each one ended with;
// empty where it ended well. Any other exception is reported as "unexpected: ...".
template <class Work>
std::vector<std::string> run_workers(Ends& group, Work work) {
  std::vector<std::string> errors(group.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(*group[rank], rank);
      } catch (const PeerError& error) {
        errors[rank] = error.what();
      } catch (const std::exception& error) {
        errors[rank] = std::string("unexpected: ") + error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

template <class T>
std::span<std::byte> bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

}  // namespace thinwire
