#include <cstdio>

#include "thinwire/thinwire.h"

// Runs what an installed library is for: it links every room, so a missing archive or dependency fails here.
int main() {
  for (const thinwire::CompressorInfo& row : thinwire::compressors()) std::printf("%s\n", row.name.c_str());
  std::printf("thinwire %s\n", thinwire::version());
  return thinwire::compressors().empty() ? 1 : 0;
}
