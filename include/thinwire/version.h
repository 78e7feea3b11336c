#pragma once

namespace thinwire {

// "major.minor.patch"
const char* version();

}  // namespace thinwire
