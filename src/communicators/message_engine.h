// Collectives made of messages: one thread moves those of all lanes, and backs off while there is nothing to move.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "communicators/messenger.h"
#include "thinwire/communicator.h"

namespace thinwire {

// Throws ArgumentError.
void check_message_options(int lanes, std::chrono::milliseconds timeout);

// This worker's ends of `lanes` groups, which are independent of each other. All workers of the messenger make them
// together, with as many lanes. A collective in which nothing moves for `timeout` fails. hosts: as in ReducerOptions. Throws ArgumentError.
std::vector<std::unique_ptr<Communicator>> make_message_communicators(std::unique_ptr<Messenger> messenger, int lanes,
                                                                      std::chrono::milliseconds timeout,
                                                                      std::span<const int> hosts = {});

}  // namespace thinwire
