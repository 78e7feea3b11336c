// Collectives over sockets that Python has connected.
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <span>

#include "bindings.h"
#include "thinwire/errors.h"
#include "thinwire/sockets.h"

namespace thinwire::python {
namespace {

class HeldCommunicator {
 public:
  HeldCommunicator(int rank, std::vector<std::array<int, 2>> sockets, double timeout, std::vector<int> hosts)
      : communicator_(make_socket_communicator({.rank = rank,
                                                .sockets = std::move(sockets),
                                                .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(1000 * std::clamp(timeout, 1e-3, 1e9))),
                                                .hosts = std::move(hosts)})) {}

  void perform(const Collective& collective) {
    std::shared_ptr<Communicator> communicator;
    {
      const std::lock_guard lock(mutex_);
      communicator = communicator_;
    }
    if (!communicator) throw StateError("these connections are closed");
    communicator->perform(collective);
  }
  void combine(CollectiveKind kind, const Bucket& bucket) {
    const ElementType type = gradient_type(bucket);
    const std::span<std::byte> data(static_cast<std::byte*>(bucket.data()), bucket.nbytes());
    const nb::gil_scoped_release released;
    perform({.kind = kind, .type = type, .data = data});
  }
  void close() {
    std::shared_ptr<Communicator> communicator;
    {
      const std::lock_guard lock(mutex_);
      communicator.swap(communicator_);
    }
    if (communicator) communicator->abandon();
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<Communicator> communicator_;  // whoever performs something has it for so long
};

}  // namespace

void bind_sockets(nb::module_& module) {
  nb::class_<HeldCommunicator>(module, "SocketCommunicator", "This worker's end of a group that is joined by sockets, for one thread.")
      .def(nb::init<int, std::vector<std::array<int, 2>>, double, std::vector<int>>(), nb::kw_only(), nb::arg("rank"), nb::arg("sockets"),
           nb::arg("timeout"), nb::arg("hosts"),
           "sockets: by worker, descriptors of two connected stream sockets, which are taken over; the own ones are not looked at. timeout: seconds.")
      .def("perform", &HeldCommunicator::perform, nb::arg("collective"), nb::call_guard<nb::gil_scoped_release>(),
           "Returns when the collective's result is there. Releases the GIL. Raises PeerError, and from then on always.")
      .def("sum", [](HeldCommunicator& self, const Bucket& numbers) { self.combine(CollectiveKind::kSum, numbers); }, nb::arg("numbers"),
           "Of all workers' numbers (float32, bfloat16 or float16), one by one, in place. As perform().")
      .def("greatest", [](HeldCommunicator& self, const Bucket& numbers) { self.combine(CollectiveKind::kMax, numbers); }, nb::arg("numbers"),
           "The greatest likewise; NaN is the greatest.")
      .def("close", &HeldCommunicator::close, nb::call_guard<nb::gil_scoped_release>(),
           "Leaves the group: the others are told, and what is under way in another thread fails.");
}

}  // namespace thinwire::python
