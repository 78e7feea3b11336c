// What this process has had of the processor.
#pragma once

#include <sys/resource.h>

namespace thinwire::tool {

// Seconds, of all its threads and of the system for them, so far.
inline double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec); };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace thinwire::tool
