// Finds out what the link between the workers can do.
#pragma once

#include "core/context.h"
#include "core/exchange.h"
#include "thinwire/link.h"

namespace thinwire {

// Some rounds that move next to nothing, then ever longer ones until one takes a while. The slowest worker's times count, so
// that all find the same. Takes a tenth of a second or so on anything from 100 Mb/s on. `found` outlives the exchange; it
// stays as it is where there is no other worker.
Exchange probe_link(Context& context, Link& found);

}  // namespace thinwire
