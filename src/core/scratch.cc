#include "core/scratch.h"

#include <algorithm>
#include <new>

// The address sanitizer is told what is not taken; elsewhere these do nothing.
#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(memory, bytes)
#endif

namespace thinwire {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSpare = 8;  // what has grown again has such a part to spare: lengths may vary from step to step

}  // namespace

void Scratch::AlignedDelete::operator()(std::byte* memory) const noexcept {
  ::operator delete[](memory, std::align_val_t(kAlignment));
}

void Scratch::add_block(std::size_t bytes) {
  auto* memory = static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(kAlignment)));
  blocks_.push_back({std::unique_ptr<std::byte[], AlignedDelete>(memory), bytes});
  ASAN_POISON_MEMORY_REGION(memory, bytes);
  used_ = 0;
}

std::byte* Scratch::take_bytes(std::size_t bytes) {
  const std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;  // some bytes between two spans belong to neither
  if (blocks_.empty() || rounded > blocks_.back().size - used_) add_block(rounded);
  std::byte* const taken = blocks_.back().memory.get() + used_;
  ASAN_UNPOISON_MEMORY_REGION(taken, bytes);
  used_ += rounded;
  return taken;
}

// Several blocks become one that holds as much, so that the next round of the same size needs one.
void Scratch::reset() {
  if (blocks_.size() > 1) {
    const std::size_t total = capacity();
    blocks_.clear();
    add_block(has_grown_ ? total + total / kSpare : total);
    has_grown_ = true;
  }
  if (!blocks_.empty()) ASAN_POISON_MEMORY_REGION(blocks_.back().memory.get(), blocks_.back().size);
  used_ = 0;
}

std::size_t Scratch::capacity() const {
  std::size_t total = 0;
  for (const Block& block : blocks_) total += block.size;
  return total;
}

}  // namespace thinwire
