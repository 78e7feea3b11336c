// Memory for coroutine frames, reused: an exchange in steady state allocates nothing.
#pragma once

#include <cstddef>

namespace thinwire {

// Any thread may return what another took.
void* take_frame(std::size_t bytes);
void return_frame(void* frame, std::size_t bytes) noexcept;

}  // namespace thinwire
