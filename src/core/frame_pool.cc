#include "core/frame_pool.h"

#include <array>
#include <mutex>
#include <new>

namespace thinwire {
namespace {

constexpr std::size_t kGranularity = 256;
constexpr std::size_t kClasses = 32;  // frames of up to 8 KiB are pooled

class FramePool {
 public:
  void* take(std::size_t size_class) {
    {
      const std::lock_guard lock(mutex_);
      if (Frame* frame = free_[size_class]) {
        free_[size_class] = frame->next;
        return frame;
      }
    }
    return ::operator new((size_class + 1) * kGranularity);
  }

  void give(void* memory, std::size_t size_class) noexcept {
    const std::lock_guard lock(mutex_);
    free_[size_class] = new (memory) Frame{free_[size_class]};
  }

 private:
  struct Frame {
    Frame* next;
  };
  std::mutex mutex_;
  std::array<Frame*, kClasses> free_{};
};

// Never destroyed: frames may be returned while the process ends.
FramePool& pool() {
  static FramePool* const instance = new FramePool;
  return *instance;
}

std::size_t class_of(std::size_t bytes) { return bytes == 0 ? 0 : (bytes - 1) / kGranularity; }

}  // namespace

void* take_frame(std::size_t bytes) {
  const std::size_t size_class = class_of(bytes);
  return size_class < kClasses ? pool().take(size_class) : ::operator new(bytes);
}

void return_frame(void* frame, std::size_t bytes) noexcept {
  const std::size_t size_class = class_of(bytes);
  if (size_class < kClasses)
    pool().give(frame, size_class);
  else
    ::operator delete(frame);
}

}  // namespace thinwire
