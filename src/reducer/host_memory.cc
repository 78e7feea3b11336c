#include "reducer/host_memory.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::size_t kFrontBytes = 4096;  // before a stretch: what tells that it is the right one

// What a worker tells the others of its stretch.
struct Offer {
  std::uint64_t number = 0;  // drawn for this one, and written before it: containers count processes and descriptors alike
  std::int64_t process = 0;
  std::int64_t descriptor = -1;
  std::uint64_t bytes = 0;  // 0: there is none
};

std::uint64_t drawn() {
  std::uint64_t number = 0;
  if (getentropy(&number, sizeof number) != 0) throw Error("the system gives no random numbers");
  return number;
}

Offer offer_of(const SharedPages& pages) {
  const Offer offer{drawn(), getpid(), pages.descriptor(), pages.bytes().size()};
  if (!pages.bytes().empty()) std::memcpy(pages.bytes().data(), &offer.number, sizeof offer.number);
  return offer;
}

bool begins_with(std::span<const std::byte> pages, std::uint64_t number) {
  return !pages.empty() && std::memcmp(pages.data(), &number, sizeof number) == 0;
}

}  // namespace

SharedPages::SharedPages(std::size_t bytes) {
  descriptor_ = memfd_create("thinwire", MFD_CLOEXEC);
  if (descriptor_ < 0 || ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) return;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory != MAP_FAILED) bytes_ = {static_cast<std::byte*>(memory), bytes};
}

SharedPages::SharedPages(std::int64_t process, std::int64_t descriptor, std::uint64_t bytes) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%lld/fd/%lld", static_cast<long long>(process), static_cast<long long>(descriptor));
  const int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (opened < 0) return;
  // A file of another kind, or a shorter one, would end this process where it is read.
  if (bytes > 0 && lseek(opened, 0, SEEK_END) == static_cast<off_t>(bytes)) {
    void* const memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, opened, 0);
    if (memory != MAP_FAILED) bytes_ = {static_cast<std::byte*>(memory), static_cast<std::size_t>(bytes)};
  }
  close(opened);
}

SharedPages::SharedPages(SharedPages&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), descriptor_(std::exchange(other.descriptor_, -1)) {}

SharedPages& SharedPages::operator=(SharedPages&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

SharedPages::~SharedPages() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  if (descriptor_ >= 0) close(descriptor_);
}

Exchange share_memory(HostMemory& memory, std::size_t bytes, bool may, Context& context) {
  const auto workers = static_cast<std::size_t>(context.world_size());
  if (memory.tried_ && (memory.stretches_.empty() || bytes <= memory.bytes_)) co_return;
  memory.tried_ = true;
  memory.stretches_.clear();
  memory.others_.clear();
  memory.bytes_ = bytes;
  memory.own_ = may ? SharedPages(kFrontBytes + bytes) : SharedPages();

  std::vector<std::span<std::byte>> stretches;
  Offer own = offer_of(memory.own_);
  std::vector<Offer> offers(workers);
  Await told = context.gather(std::as_writable_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(offers)));
  co_await told;
  std::array<std::int32_t, 1> failed = {0};
  for (std::size_t worker = 0; worker < workers; ++worker) {
    const Offer& offer = offers[worker];
    const bool is_own = worker == static_cast<std::size_t>(context.rank());
    const auto pages = is_own ? memory.own_.bytes() : memory.others_.emplace_back(offer.process, offer.descriptor, offer.bytes).bytes();
    if (pages.size() != kFrontBytes + bytes || !begins_with(pages, offer.number))
      failed[0] = 1;
    else
      stretches.push_back(pages.subspan(kFrontBytes));
  }
  Await agreed = context.max(failed);
  co_await agreed;
  if (failed[0] == 0) {
    memory.stretches_ = std::move(stretches);
    co_return;
  }
  memory.others_.clear();
  memory.own_ = SharedPages();
}

}  // namespace thinwire
