#include "core/exchange.h"

namespace thinwire {

const Collective* Exchange::next() {
  if (!frame_ || frame_.done()) return nullptr;
  promise_type& root = frame_.promise();
  root.pending = nullptr;
  if (root.innermost)
    root.innermost.resume();
  else
    frame_.resume();
  if (root.error) std::rethrow_exception(std::exchange(root.error, nullptr));
  return root.pending;
}

}  // namespace thinwire
