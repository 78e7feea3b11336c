// Collectives made of messages: whatever arrives, in a segment or in a notice, a worker ends with its result or with
// PeerError, within the timeout.
#include <thread>

#include "communicators/post_office.h"
#include "fuzz/fuzz_input.h"
#include "thinwire/errors.h"

namespace thinwire::fuzz {
namespace {

void collectives(Communicator& communicator) {
  std::vector<float> values(10), everyones(20);
  communicator.perform({.kind = CollectiveKind::kSum, .type = ElementType::kFloat32, .data = bytes_of(values)});
  communicator.perform({.kind = CollectiveKind::kGather, .data = bytes_of(values), .result = bytes_of(everyones)});
  communicator.perform({.kind = CollectiveKind::kBroadcast, .data = bytes_of(values)});
}

// Two workers, one of which gets what the input makes of the other's letters.
void exchange(Input& input) {
  const auto spoil = [&input](int, int to, int, PostOffice::Letter& letter) {
    if (to != 0) return true;
    const std::size_t change = input.number<std::uint8_t>();
    if (change >= 128) letter.resize(change);
    else letter.resize(letter.size() - std::min(change, letter.size()));
    input.spoil(letter);
    return change != 255;
  };
  Ends group = make_posting_communicators(2, std::chrono::milliseconds(20), spoil);
  for (const std::string& error : run_workers(group, [](Communicator& end, std::size_t) { collectives(end); }))
    require(!error.starts_with("unexpected"), "a worker ends well or with PeerError");
}

}  // namespace
}  // namespace thinwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  thinwire::fuzz::Input input(data, size);
  thinwire::fuzz::exchange(input);
  return 0;
}
