// Floats that begin at a cache line; those that resize() adds have no value yet.
#pragma once

#include <cstddef>
#include <new>
#include <utility>
#include <vector>

namespace thinwire::kernels {

template <class T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) {}  // NOLINT(google-explicit-constructor): allocators convert

  // Elements that nothing is said of are not written.
  template <class U>
  void construct(U* element) {
    ::new (static_cast<void*>(element)) U;
  }
  template <class U, class... Values>
  void construct(U* element, Values&&... values) {
    ::new (static_cast<void*>(element)) U(std::forward<Values>(values)...);
  }
  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kAlignment)); }
  void deallocate(T* memory, std::size_t) { ::operator delete(memory, kAlignment); }
  friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) { return true; }
};

using AlignedFloats = std::vector<float, AlignedAllocator<float>>;

}  // namespace thinwire::kernels
