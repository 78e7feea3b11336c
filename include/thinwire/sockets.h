// Workers that are joined by connected sockets, whoever has connected them.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "thinwire/communicator.h"

namespace thinwire {

struct SocketOptions {
  int rank = 0;
  // By worker: two connected stream sockets to that one, of which the first is for what collectives move, and the second for what the workers say when
  // they leave. The worker's own entry is not looked at.
  std::vector<std::array<int, 2>> sockets;
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // for a collective in which nothing moves
  std::vector<int> hosts = {};                                  // as in ReducerOptions
};

// This worker's end of a group. Takes the sockets over, which are closed with it, or when this throws. Whoever waits for a
// collective moves its messages, and sleeps in poll(2) between them, so that each lane wants such a communicator, and a thread, of its own.
// Another worker's end, clean or not, is noticed at once. Throws ArgumentError.
std::unique_ptr<Communicator> make_socket_communicator(const SocketOptions& options);

}  // namespace thinwire
