// What a network takes of the processor.
#pragma once

namespace thinwire::tool {

// Seconds of the processor's time to send a byte by TCP and to receive it, through this machine's loopback, whichever cores they are spent on. Throws Error
// where there is none.
double measure_sending();

}  // namespace thinwire::tool
