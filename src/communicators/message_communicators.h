// Communicators whose collectives are made of messages, and who moves these: a thread of the engine's own, or the caller's.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "communicators/messenger.h"
#include "thinwire/communicator.h"

namespace thinwire {

enum class MovedBy : unsigned char { kThread, kCaller };

// Throws ArgumentError.
void check_message_options(int lanes, std::chrono::milliseconds timeout);

// This worker's ends of `lanes` groups, which are independent of each other. All workers of the messenger make them
// together, with as many lanes. A collective in which nothing moves for `timeout` fails. hosts: as in ReducerOptions.
//
// kThread: messages of all lanes move whatever the caller does; the messenger is called by that thread alone.
// kCaller: those of all lanes move while any thread is within perform(), is_done() or wait() of one of them; the messenger is called by
// one thread at a time, and if all lanes are used by one thread, by that alone. Throws ArgumentError.
std::vector<std::unique_ptr<Communicator>> make_message_communicators(std::unique_ptr<Messenger> messenger, int lanes,
                                                                      std::chrono::milliseconds timeout,
                                                                      std::span<const int> hosts = {},
                                                                      MovedBy moved_by = MovedBy::kThread);

}  // namespace thinwire
