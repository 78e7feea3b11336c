#include "thinwire/mpi.h"

#include <unistd.h>

#define OMPI_SKIP_MPICXX 1  // the C++ bindings that MPI has given up
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>

#include "communicators/message_communicators.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

// A worker may be lost, and MPI_Finalize() would wait for it.
std::atomic<bool> given_up = false;

std::string text_of(int error) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(error, text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

void check(int error, const char* what) {
  if (error != MPI_SUCCESS) throw Error(std::string(what) + ": " + text_of(error));
}

bool is_running() {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

class MpiMessenger final : public Messenger {
 public:
  MpiMessenger(MPI_Comm communicator, int channels) {
    for (int channel = 0; channel < channels; ++channel) {
      MPI_Comm duplicate = MPI_COMM_NULL;
      check(MPI_Comm_dup(communicator, &duplicate), "MPI_Comm_dup");
      check(MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
      channels_.push_back(duplicate);
    }
    MPI_Comm_rank(channels_.front(), &rank_);
    MPI_Comm_size(channels_.front(), &world_size_);
    MPI_Comm neighbours = MPI_COMM_NULL;
    check(MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &neighbours), "MPI_Comm_split_type");
    int neighbours_size = 0;
    MPI_Comm_size(neighbours, &neighbours_size);
    is_within_host_ = neighbours_size == world_size_;
    MPI_Comm_free(&neighbours);
  }

  // While a worker is expected to send something the communicators stay, so that MPI gives their numbers to no others, who would
  // receive it. One receive may stand for messages of several workers: that it has been answered by now does not say that they all have.
  // Receives can be cancelled if nothing has come. Sends cannot, and then their memory stays as well.
  ~MpiMessenger() override {
    if (!is_running()) return;
    if (requests_.empty()) {
      for (MPI_Comm& channel : channels_) MPI_Comm_free(&channel);
      return;
    }
    std::vector<Finished> ignored;
    poll(ignored);
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (operations_[i].receives) MPI_Cancel(&requests_[i]);
    for (int milliseconds = 0; milliseconds < 100 && !requests_.empty(); ++milliseconds) {
      usleep(1000);
      poll(ignored);
    }
    if (requests_.empty()) return;
    given_up = true;
    for (auto& memory : kept_) memory.release();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  bool is_within_host() const override { return is_within_host_; }

  void send(int peer, int channel, std::span<const std::byte> message, std::span<const std::byte>, Token token) override {
    MPI_Request request = MPI_REQUEST_NULL;
    const int error = MPI_Isend(message.data(), static_cast<int>(message.size()), MPI_BYTE, peer, 0,
                                channels_[static_cast<std::size_t>(channel)], &request);
    add({token, false}, request, error);
  }

  void receive(int peer, int channel, std::span<std::byte> room, std::span<std::byte>, Token token) override {
    MPI_Request request = MPI_REQUEST_NULL;
    const int from = peer == kAnyone ? MPI_ANY_SOURCE : peer;
    const int error = MPI_Irecv(room.data(), static_cast<int>(room.size()), MPI_BYTE, from, 0,
                                channels_[static_cast<std::size_t>(channel)], &request);
    add({token, true}, request, error);
  }

  void poll(std::vector<Finished>& finished) override {
    for (Finished& each : finished_) finished.push_back(std::move(each));
    finished_.clear();
    if (requests_.empty()) return;
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int count = 0;
    const int error = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(), statuses_.data());
    if (count == MPI_UNDEFINED) return;
    for (int i = 0; i < count; ++i) {
      const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
      finished.push_back(outcome(operations_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])], status,
                                 error == MPI_ERR_IN_STATUS ? status.MPI_ERROR : error));
    }
    remove(std::span(indices_).first(static_cast<std::size_t>(count)));
  }

  // A simulator (SMPI) has a time of its own, and replaces MPI_Wtime() and usleep() by it.
  std::chrono::nanoseconds now() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(MPI_Wtime()));
  }
#ifndef THINWIRE_SIMULATED
  void nap(std::chrono::microseconds duration) override { usleep(static_cast<useconds_t>(duration.count())); }
#else
  // Until something has finished, without the polls in between, of which each is an event for the simulator. MPI itself would spin, and know no timeout.
  void nap(std::chrono::microseconds) override {
    int index = 0;
    MPI_Status status;
    const int error = MPI_Waitany(static_cast<int>(requests_.size()), requests_.data(), &index, &status);
    if (index == MPI_UNDEFINED) return;
    finished_.push_back(outcome(operations_[static_cast<std::size_t>(index)], status, error));
    remove(std::span(&index, 1));
  }
  std::optional<std::chrono::microseconds> light_nap() const override { return std::chrono::microseconds(0); }
#endif

  void give_up() noexcept override { given_up = true; }
  void keep(std::unique_ptr<std::byte[]> memory) noexcept override { kept_.push_back(std::move(memory)); }

 private:
  struct Operation {
    Token token = 0;
    bool receives = false;
  };

  void add(const Operation& operation, MPI_Request request, int error) {
    if (error != MPI_SUCCESS) {
      finished_.push_back({operation.token, 0, text_of(error)});
      return;
    }
    operations_.push_back(operation);
    requests_.push_back(request);
  }

  static Finished outcome(const Operation& operation, const MPI_Status& status, int error) {
    int bytes = 0;
    if (operation.receives && error == MPI_SUCCESS) MPI_Get_count(&status, MPI_BYTE, &bytes);
    return {operation.token, static_cast<std::size_t>(std::max(bytes, 0)), error == MPI_SUCCESS ? "" : text_of(error)};
  }

  void remove(std::span<int> indices) {
    std::ranges::sort(indices, std::greater<>());
    for (const int index : indices) {
      const auto at = static_cast<std::size_t>(index);
      operations_[at] = operations_.back();
      requests_[at] = requests_.back();
      operations_.pop_back();
      requests_.pop_back();
    }
  }

  int rank_ = 0;
  int world_size_ = 1;
  bool is_within_host_ = false;
  std::vector<MPI_Comm> channels_;
  std::vector<Operation> operations_;  // on their way, each with its request
  std::vector<MPI_Request> requests_;
  std::vector<Finished> finished_;  // could not even begin, or has ended a nap
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::unique_ptr<std::byte[]>> kept_;
};

}  // namespace

MpiEnvironment::MpiEnvironment() {
  if (is_running()) return;
  int provided = MPI_THREAD_SINGLE;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  started_ = true;
}

MpiEnvironment::~MpiEnvironment() {
  if (!started_) return;
  if (!given_up) {
    MPI_Finalize();
    return;
  }
  // As soon as one process ends like this mpirun ends the others, which have something to say too: at the very end, since
  // this one has not said anything yet either.
  std::atexit([] { sleep(2); });
}

int MpiEnvironment::rank() const {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int MpiEnvironment::world_size() const {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

std::vector<std::unique_ptr<Communicator>> make_mpi_communicators(const MpiOptions& options) {
  if (!is_running()) throw ArgumentError("MPI is not running: make an MpiEnvironment, or call MPI_Init_thread(), before");
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  if (options.progress == Progress::kThread && provided < MPI_THREAD_MULTIPLE)
    throw ArgumentError("MPI runs without MPI_THREAD_MULTIPLE, which a thread that moves messages needs: ask for it in MPI_Init_thread(), "
                        "or leave it to the caller");
  const bool by_thread = options.progress != Progress::kCaller && provided >= MPI_THREAD_MULTIPLE;
  const MPI_Comm communicator =
      options.communicator ? MPI_Comm_f2c(static_cast<MPI_Fint>(*options.communicator)) : MPI_COMM_WORLD;
  check_message_options(options.lanes, options.timeout);  // before anything that waits for the others
  return make_message_communicators(std::make_unique<MpiMessenger>(communicator, options.lanes + 1), options.lanes, options.timeout,
                                    options.hosts, by_thread ? MovedBy::kThread : MovedBy::kCaller);
}

}  // namespace thinwire
