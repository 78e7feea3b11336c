// What carries messages between the workers of a group: MPI, or a test's own.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace thinwire {

// Messages between one pair of workers on one channel arrive in the order in which they were sent. Called by one thread.
class Messenger {
 public:
  using Token = std::uint64_t;  // the caller's name for an operation

  struct Finished {
    Token token = 0;
    std::size_t bytes = 0;   // received
    std::string error = {};  // empty: it went well
  };

  virtual ~Messenger() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // Whether messages between all workers are known to stay within one host. On all the same.
  virtual bool is_within_host() const { return false; }

  static constexpr int kAnyone = -1;

  // Begin an operation. Its memory belongs to the messenger until poll() tells that it has finished, or for ever, unless it can forget.
  // A message that is longer than the room is an error. Channels count from 0; in one, receives name all
  // their peers, or are from kAnyone. rest: what lies elsewhere of a message, behind its head; only for messengers that can forget.
  virtual void send(int peer, int channel, std::span<const std::byte> head, std::span<const std::byte> rest, Token token) = 0;
  virtual void receive(int peer, int channel, std::span<std::byte> head, std::span<std::byte> rest, Token token) = 0;

  // Whether operations can be taken back: those of a channel that have not finished never do then, nor is their memory touched any more.
  virtual bool can_forget() const { return false; }
  virtual void forget(int /*channel*/) {}

  // Appends what has finished since the last call.
  virtual void poll(std::vector<Finished>& finished) = 0;

  // Time, which a simulated network has of its own, and which passes only while somebody naps or sends there.
  virtual std::chrono::nanoseconds now() const { return std::chrono::steady_clock::now().time_since_epoch(); }
  virtual void nap(std::chrono::microseconds duration) { std::this_thread::sleep_for(duration); }

  // Where nap() ends as soon as something can be moved: how long it may last.
  virtual std::optional<std::chrono::microseconds> light_nap() const { return {}; }

  // A lane has failed: a worker may be lost, so nothing that needs all of them will end.
  virtual void give_up() noexcept = 0;

  // Takes over memory that unfinished operations may still use.
  virtual void keep(std::unique_ptr<std::byte[]> memory) noexcept = 0;
};

}  // namespace thinwire
