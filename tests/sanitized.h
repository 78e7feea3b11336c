// Sanitizers make tests ten times as slow; where a loop tries many cases of one kind, fewer do under them.
#pragma once

namespace thinwire::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace thinwire::testing
