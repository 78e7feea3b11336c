// How all workers come to have the same bases, before the steps that use them.
#pragma once

#include <span>

#include "compressors/gradiveq/gradiveq_cycle.h"
#include "core/context.h"

namespace thinwire {

// One memory of each parameter, the same ones on every worker. A parameter's basis is that of the worker who has learnt it of most
// steps, of several the first one; without any the parameter stays uncompressed. That is its owner, unless the number of workers has
// changed since it began to learn.
//
// Rounds: a max of a number a parameter, another one, and a broadcast from each worker whose bases are taken.
Exchange agree_on_bases(std::span<GradiveqCycle* const> cycles, Context& context);

}  // namespace thinwire
