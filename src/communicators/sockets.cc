#include "thinwire/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "communicators/message_communicators.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr auto kPatienceWithNotices = std::chrono::milliseconds(200);

// In front of every message: how long it is.
using Length = std::uint64_t;

class Socket {
 public:
  explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&&) = delete;

  int descriptor() const { return descriptor_; }

  // Messages are sent when they are whole, so that nobody need wait whether more comes.
  void make_ready() const {
    int type = 0;
    socklen_t size = sizeof type;
    if (getsockopt(descriptor_, SOL_SOCKET, SO_TYPE, &type, &size) < 0 || type != SOCK_STREAM)
      throw ArgumentError("descriptor " + std::to_string(descriptor_) + " is no stream socket");
    const int on = 1;
    setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // sockets of other kinds know no such delay
  }

 private:
  int descriptor_;
};

// One channel to one worker. Messages follow one another as bytes.
class Connection {
 public:
  using Token = Messenger::Token;
  using Finished = Messenger::Finished;

  Connection(Socket socket, bool is_for_notices) : socket_(std::move(socket)), is_for_notices_(is_for_notices) {
    if (socket_.descriptor() >= 0) socket_.make_ready();
  }

  int descriptor() const { return socket_.descriptor(); }
  bool is_for_notices() const { return is_for_notices_; }
  bool has_ended() const { return !end_.empty(); }
  bool sends() const { return !sends_.empty(); }
  bool receives() const { return !receives_.empty(); }

  void send(std::span<const std::byte> head, std::span<const std::byte> rest, Token token) {
    sends_.push_back({head.size() + rest.size(), head, rest, token});
  }
  void receive(std::span<std::byte> head, std::span<std::byte> rest, Token token) { receives_.push_back({head, rest, token}); }
  void forget_receives() { receives_.clear(); }

  // Nothing behind a message that was begun is of any use.
  void forget() {
    sends_.clear();
    receives_.clear();
    if (sent_ + received_ > 0) end_ = "it was given up within a message";
  }

  // As much of what is to be sent as the system takes now.
  void flush(std::vector<Finished>& finished) {
    while (sends() && !has_ended()) {
      const Sending& first = sends_.front();
      Parts parts({std::as_bytes(std::span(&first.length, 1)), first.head, first.rest}, sent_);
      const ssize_t count = sendmsg(descriptor(), &parts.header, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) end_ = std::strerror(errno);
        return;
      }
      sent_ += static_cast<std::size_t>(count);
      if (sent_ < sizeof(Length) + first.length) continue;
      finished.push_back({first.token, 0, ""});
      sends_.pop_front();
      sent_ = 0;
    }
  }

  // As much of what is to be received as is there. Of a message that is longer than its room the rest is not read: nothing behind it is of any use.
  void fill(std::vector<Finished>& finished) {
    while (receives() && !has_ended()) {
      const Receiving& first = receives_.front();
      if (received_ < sizeof(Length)) {
        if (!read({std::as_bytes(std::span(&length_, 1)), {}, {}}, received_)) return;
        if (received_ < sizeof(Length)) continue;
      }
      const std::size_t room = first.head.size() + first.rest.size(), done = received_ - sizeof(Length);
      if (length_ > room) {
        end_ = "a message of " + std::to_string(length_) + " bytes came where " + std::to_string(room) + " have room";
        return;
      }
      const std::size_t of_head = std::min<std::size_t>(first.head.size(), length_);
      if (done < length_ && !read({first.head.first(of_head), first.rest.first(length_ - of_head), {}}, done)) return;
      if (received_ < sizeof(Length) + length_) continue;
      finished.push_back({first.token, length_, ""});
      receives_.pop_front();
      received_ = 0;
    }
  }

  // What cannot be done any more.
  void fail(std::vector<Finished>& finished) {
    for (const Sending& each : sends_) finished.push_back({each.token, 0, end_});
    for (const Receiving& each : receives_) finished.push_back({each.token, 0, end_});
    sends_.clear();
    receives_.clear();
  }

 private:
  struct Sending {
    Length length;
    std::span<const std::byte> head, rest;
    Token token;
  };
  struct Receiving {
    std::span<std::byte> head, rest;
    Token token;
  };

  // What lies in several places, behind its first bytes, as the system wants it; when it is to be received the memory is not const.
  struct Parts {
    using Places = std::array<std::span<const std::byte>, 3>;

    Parts(const Places& places, std::size_t done) {
      for (std::size_t i = 0; i < places.size(); ++i) {
        const std::size_t of_place = std::min(done, places[i].size());
        all[i] = {const_cast<std::byte*>(places[i].data()) + of_place, places[i].size() - of_place};
        done -= of_place;
      }
      header.msg_iov = all.data();
      header.msg_iovlen = all.size();
    }
    Parts(const Parts&) = delete;

    std::array<iovec, 3> all;
    msghdr header = {};
  };

  // Whether anything was read, into the places behind so many bytes.
  bool read(const Parts::Places& places, std::size_t done) {
    Parts parts(places, done);
    for (;;) {
      const ssize_t count = recvmsg(descriptor(), &parts.header, MSG_DONTWAIT);
      if (count > 0) received_ += static_cast<std::size_t>(count);
      if (count > 0) return true;
      if (count == 0) end_ = "it has closed the connection";
      else if (errno == EINTR) continue;
      else if (errno != EAGAIN && errno != EWOULDBLOCK) end_ = std::strerror(errno);
      return false;
    }
  }

  Socket socket_;
  bool is_for_notices_;
  std::string end_;  // why nothing comes or goes any more
  std::deque<Sending> sends_;
  std::deque<Receiving> receives_;
  std::size_t sent_ = 0, received_ = 0;  // of the first of each, its length included
  Length length_ = 0;                    // of what is received
};

class SocketMessenger final : public Messenger {
 public:
  SocketMessenger(int rank, std::vector<std::array<Socket, 2>> sockets) : rank_(rank) {
    for (auto& [messages, notices] : sockets)
      peers_.push_back({Connection(std::move(messages), false), Connection(std::move(notices), true), {}});
  }

  int rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(peers_.size()); }

  // What the system has room for is on its way when this returns. A process made by fork() has the same connections, but nothing to say:
  // what it does not need any more it drops, and its parent goes on.
  void send(int peer, int channel, std::span<const std::byte> head, std::span<const std::byte> rest, Token token) override {
    if (getpid() != process_) return finished_.push_back({token, 0, "these connections are the parent process's"});
    const std::lock_guard lock(mutex_);
    Connection& connection = at(peer, channel);
    connection.send(head, rest, token);
    connection.flush(finished_);
  }

  void receive(int peer, int channel, std::span<std::byte> head, std::span<std::byte> rest, Token token) override {
    const std::lock_guard lock(mutex_);
    if (peer != kAnyone) return at(peer, channel).receive(head, rest, token);
    notice_room_ = head;
    notice_token_ = token;
    expects_notice_ = true;
  }

  // Notices first, which say why a worker has left.
  void poll(std::vector<Finished>& finished) override {
    const std::lock_guard lock(mutex_);
    watch();
    sleep(watched_, std::chrono::microseconds(0));
    const bool reads_notices = expects_notice_;
    if (reads_notices) read_notices();
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      if (watched_[i].revents == 0) continue;
      watching_[i]->flush(finished_);
      if (!watching_[i]->is_for_notices()) watching_[i]->fill(finished_);
    }
    for (Peer& peer : peers_) end_connections(peer, reads_notices);
    finished.insert(finished.end(), std::move_iterator(finished_.begin()), std::move_iterator(finished_.end()));
    finished_.clear();
  }

  // Meanwhile another thread may leave.
  void nap(std::chrono::microseconds duration) override {
    std::unique_lock lock(mutex_);
    watch();
    std::vector<pollfd> watched = watched_;
    lock.unlock();
    sleep(watched, duration);
  }
  std::optional<std::chrono::microseconds> light_nap() const override { return std::chrono::milliseconds(5); }

  bool can_forget() const override { return true; }
  void forget(int channel) override {
    if (getpid() != process_) return;
    const std::lock_guard lock(mutex_);
    for (int peer = 0; peer < world_size(); ++peer) at(peer, channel).forget();
  }

  void give_up() noexcept override {}
  void keep(std::unique_ptr<std::byte[]>) noexcept override {}  // nothing is read or written but within poll() and send()

 private:
  struct Peer {
    Connection messages, notices;
    std::optional<std::chrono::nanoseconds> ended_at;  // when its messages did
  };

  Connection& at(int peer, int channel) {
    Peer& its = peers_[static_cast<std::size_t>(peer)];
    return channel == 0 ? its.messages : its.notices;
  }

  // The connections that something is expected of.
  void watch() {
    watched_.clear();
    watching_.clear();
    for (Peer& peer : peers_)
      for (Connection* connection : {&peer.messages, &peer.notices}) {
        const bool receives = connection->receives() || (connection->is_for_notices() && expects_notice_);
        if (connection->descriptor() < 0 || connection->has_ended() || (!receives && !connection->sends())) continue;
        const int events = (receives ? POLLIN : 0) | (connection->sends() ? POLLOUT : 0);
        watched_.push_back({connection->descriptor(), static_cast<short>(events), 0});
        watching_.push_back(connection);
      }
  }

  // Until one of them can go on.
  static void sleep(std::vector<pollfd>& watched, std::chrono::microseconds longest) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
    const timespec most = {seconds.count(), std::chrono::nanoseconds(longest - seconds).count()};
    if (ppoll(watched.data(), watched.size(), &most, nullptr) < 0)
      for (pollfd& each : watched) each.revents = 0;  // interrupted
  }

  // The one that is expected goes to whichever worker has said something; that reads it to its end.
  void read_notices() {
    for (std::size_t i = 0; i < watched_.size() && expects_notice_; ++i) {
      Connection& connection = *watching_[i];
      if (watched_[i].revents == 0 || !connection.is_for_notices() || (notice_from_ && notice_from_ != &connection)) continue;
      if (!notice_from_) connection.receive(notice_room_, {}, notice_token_);
      notice_from_ = &connection;
      connection.fill(finished_);
      if (connection.receives() && !connection.has_ended()) continue;
      expects_notice_ = connection.receives();
      connection.forget_receives();
      notice_from_ = nullptr;
    }
  }

  // A worker that ends closes both its connections, and what it had to say is in front of the end of one of them: so the other's end, which may come
  // first, is told when that has been read.
  void end_connections(Peer& peer, bool reads_notices) {
    if (peer.notices.has_ended()) peer.notices.fail(finished_);
    if (!peer.messages.has_ended()) return;
    if (!peer.ended_at) peer.ended_at = now();
    if (peer.notices.has_ended() || !reads_notices || now() - *peer.ended_at > kPatienceWithNotices) peer.messages.fail(finished_);
  }

  const int rank_;
  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::vector<Finished> finished_;  // since the last poll()
  std::vector<pollfd> watched_;
  std::vector<Connection*> watching_;

  bool expects_notice_ = false;
  std::span<std::byte> notice_room_;
  Token notice_token_ = 0;
  Connection* notice_from_ = nullptr;  // being read
};

}  // namespace

std::unique_ptr<Communicator> make_socket_communicator(const SocketOptions& options) {
  std::vector<std::array<Socket, 2>> sockets;
  for (std::size_t worker = 0; worker < options.sockets.size(); ++worker) {
    const bool own = worker == static_cast<std::size_t>(options.rank);
    const auto& [messages, notices] = options.sockets[worker];
    sockets.push_back({Socket(own ? -1 : messages), Socket(own ? -1 : notices)});
  }
  if (options.rank < 0 || static_cast<std::size_t>(options.rank) >= sockets.size())
    throw ArgumentError("rank is " + std::to_string(options.rank) + " among sockets to " + std::to_string(sockets.size()) +
                        " workers; allowed: from 0 to one less");
  check_message_options(1, options.timeout);
  auto messenger = std::make_unique<SocketMessenger>(options.rank, std::move(sockets));
  return std::move(make_message_communicators(std::move(messenger), 1, options.timeout, options.hosts, MovedBy::kCaller).front());
}

}  // namespace thinwire
