// Workers of one process that are joined by sockets.
#pragma once

#include <sys/socket.h>

#include <array>
#include <stdexcept>
#include <vector>

#include "thinwire/sockets.h"
#include "worker_threads.h"

namespace thinwire {

// By worker, what it gives to make_socket_communicator().
inline std::vector<SocketOptions> join_by_sockets(int workers, std::chrono::milliseconds timeout = std::chrono::minutes(5)) {
  const auto count = static_cast<std::size_t>(workers);
  std::vector<SocketOptions> all(count);
  for (std::size_t a = 0; a < count; ++a) {
    all[a].rank = static_cast<int>(a);
    all[a].timeout = timeout;
    all[a].sockets.resize(count, {-1, -1});
  }
  for (std::size_t a = 0; a < count; ++a)
    for (std::size_t b = a + 1; b < count; ++b)
      for (std::size_t channel = 0; channel < 2; ++channel) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) throw std::runtime_error("socketpair");
        all[a].sockets[b][channel] = pair[0];
        all[b].sockets[a][channel] = pair[1];
      }
  return all;
}

inline Ends make_socket_group(int workers, std::chrono::milliseconds timeout = std::chrono::minutes(5)) {
  Ends group;
  for (const SocketOptions& options : join_by_sockets(workers, timeout)) group.push_back(make_socket_communicator(options));
  return group;
}

}  // namespace thinwire
