#include <nanobind/nanobind.h>

#include "thinwire/version.h"

NB_MODULE(_native, module) {
  module.def("version", &thinwire::version, "The library's version, \"major.minor.patch\".");
}
