// Workers that share a host: between them gradients travel as they are, and each compresses its part for the other hosts alone.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "thinwire/communicator.h"

namespace thinwire {

// Names what this process shares with others that it reaches without a network: the running machine, and the network namespace on it.
std::string host_identity();

// Of each worker, the number of its host: from 0 on, in the order of the hosts' first workers.
std::vector<int> number_hosts(std::span<const std::string> identities);
// The same of the workers of a group, which all call this together.
std::vector<int> find_hosts(Communicator& communicator);

// Whether there are several hosts, one of which has several workers. Else there is nothing to be done on two levels.
bool has_two_levels(std::span<const int> hosts);

}  // namespace thinwire
