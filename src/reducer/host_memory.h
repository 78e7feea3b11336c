// Memory that the workers of a host share, so that what they give each other passes no messages' buffers.
//
// Each worker has a stretch of its own, which it writes and the others map and read; when, is agreed on by collectives. It has no name, but
// is found by its owner's process and descriptor, and is gone with the last that maps it. Where that cannot be done (workers in containers
// that see nothing of each other) messages do it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/context.h"
#include "core/exchange.h"

namespace thinwire {

// Memory of pages that other processes may map.
class SharedPages {
 public:
  SharedPages() = default;
  // Own ones. Empty if the system gives none.
  explicit SharedPages(std::size_t bytes);
  // Those of another worker, by its process and descriptor, which it may close afterwards. Empty if they cannot be reached.
  SharedPages(std::int64_t process, std::int64_t descriptor, std::uint64_t bytes);
  SharedPages(SharedPages&& other) noexcept;
  SharedPages& operator=(SharedPages&& other) noexcept;
  ~SharedPages();

  std::span<std::byte> bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }  // of own ones

 private:
  std::span<std::byte> bytes_;
  int descriptor_ = -1;
};

class HostMemory {
 public:
  // Of each worker of the host; empty where none is shared.
  std::span<const std::span<std::byte>> stretches() const { return stretches_; }

 private:
  friend Exchange share_memory(HostMemory& memory, std::size_t bytes, bool may, Context& context);

  bool tried_ = false;
  std::size_t bytes_ = 0;
  SharedPages own_;
  std::vector<SharedPages> others_;
  std::vector<std::span<std::byte>> stretches_;
};

// Provides at least so many bytes for each worker, if all may and they can be had: by all workers of a host together, whose group
// `context` is of.
Exchange share_memory(HostMemory& memory, std::size_t bytes, bool may, Context& context);

}  // namespace thinwire
