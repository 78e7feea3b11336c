// The library's exceptions. Messages name what was given, what is allowed and what to do.
#pragma once

#include <stdexcept>

namespace thinwire {

class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A spec string, rule or option is wrong. Thrown before any collective starts.
class ArgumentError : public Error {
  using Error::Error;
};

// Bytes that came from another worker are not what the format allows.
class PayloadError : public Error {
  using Error::Error;
};

// A worker is lost, late or has failed; the communicator is of no further use.
class PeerError : public Error {
  using Error::Error;
};

// Saved state does not fit the reducer it is loaded into.
class StateError : public Error {
  using Error::Error;
};

}  // namespace thinwire
