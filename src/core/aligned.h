// Vectors whose memory begins where a cache line does, so that kernels' vectors cross none.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace thinwire {

constexpr std::size_t kLineBytes = 64;

// So many bytes, filled up to whole lines.
constexpr std::size_t whole_lines(std::size_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

template <class T>
struct LineAllocator {
  using value_type = T;

  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}

  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(kLineBytes))); }
  void deallocate(T* memory, std::size_t) noexcept { ::operator delete(memory, std::align_val_t(kLineBytes)); }
  template <class U>
  bool operator==(const LineAllocator<U>&) const {
    return true;
  }
};

using AlignedFloats = std::vector<float, LineAllocator<float>>;

}  // namespace thinwire
