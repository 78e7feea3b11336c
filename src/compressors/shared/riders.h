// Floats of a bucket's uncompressed parameters that are to be summed: at the end of another message's payloads instead of in a round of
// their own. There they are summed in the order of workers, and the checksum is theirs too.
#pragma once

#include <cstddef>
#include <span>

#include "compressors/shared/coded_message.h"
#include "core/context.h"

namespace thinwire {

class Riders {
 public:
  // Takes what waits in the context, if that is sooner done than a round of its own; all workers find the same. parts: 1 if every worker
  // sends all of it to everybody, or one for each owner, who sends the sum of its part to everybody.
  Riders(Context& context, std::size_t parts);

  // That they add to each payload.
  std::size_t bytes() const { return part_elements_ * sizeof(float); }
  // room <- a part's values, or once it was summed its sums.
  void write(std::size_t part, std::span<std::byte> room) const;
  // A part's values become their sums over these messages, which were read.
  void sum(std::size_t part, std::span<const ReceivedMessage> messages) const;
  // A part's values become those that its owner has summed.
  void take_sums(std::size_t part, const ReceivedMessage& message) const;

 private:
  std::span<float> part(std::size_t part) const;

  std::span<float> values_;
  std::size_t part_elements_ = 0;
  std::span<float> room_;  // for a part
};

}  // namespace thinwire
