// One floating-point setting in all threads: workers must round alike to have the same bits.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace thinwire {

// While alive: round to nearest, denormals neither flushed nor taken for zero, whatever the thread had set.
class FloatEnvironment {
 public:
#if defined(__SSE__)
  FloatEnvironment() : before_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~FloatEnvironment() { _mm_setcsr(before_); }
#else
  FloatEnvironment() = default;
#endif
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__SSE__)
  static constexpr unsigned kDefault = 0x1f80;  // all exceptions masked
  unsigned before_;
#endif
};

}  // namespace thinwire
