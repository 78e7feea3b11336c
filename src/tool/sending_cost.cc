#include "tool/sending_cost.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <limits>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "thinwire/errors.h"
#include "tool/processor_time.h"

namespace thinwire::tool {
namespace {

constexpr std::size_t kBytes = std::size_t{1} << 26, kAtOnce = std::size_t{1} << 18;
constexpr int kRepetitions = 3;  // of which the least counts, as other programs only add to it

[[noreturn]] void fail(const char* what) {
  throw Error(std::string("what sending takes cannot be measured: ") + what + ": " + std::generic_category().message(errno) + "; --sending says it instead");
}

class Socket {
 public:
  explicit Socket(int number) : number_(number) {
    if (number < 0) fail("a socket through the loopback");
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { close(number_); }
  operator int() const { return number_; }

 private:
  int number_;
};

// All of kBytes, by a call that moves some; less if it fails.
template <class Move>
std::size_t move_all(const Move& move) {
  std::size_t done = 0;
  while (done < kBytes) {
    const ssize_t moved = move(std::min(kAtOnce, kBytes - done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) break;
    done += static_cast<std::size_t>(moved);
  }
  return done;
}

}  // namespace

double measure_sending() {
  const Socket listener(socket(AF_INET, SOCK_STREAM, 0)), sender(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, any, length) != 0 || listen(listener, 1) != 0 || getsockname(listener, any, &length) != 0 || connect(sender, any, length) != 0)
    fail("the loopback");
  const Socket receiver(accept(listener, nullptr, nullptr));

  std::vector<std::byte> sent(kAtOnce, std::byte{1}), received(kAtOnce);
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRepetitions; ++i) {
    const double before = processor_seconds();
    std::size_t arrived = 0;
    std::thread other([&] { arrived = move_all([&](std::size_t bytes) { return recv(receiver, received.data(), bytes, 0); }); });
    const std::size_t gone = move_all([&](std::size_t bytes) { return send(sender, sent.data(), bytes, MSG_NOSIGNAL); });
    if (gone < kBytes) shutdown(sender, SHUT_RDWR);
    other.join();
    if (arrived < kBytes) fail("sending through the loopback");
    least = std::min(least, processor_seconds() - before);
  }
  return least / static_cast<double>(kBytes);
}

}  // namespace thinwire::tool
