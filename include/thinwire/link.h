// What it costs to send something from worker to worker.
#pragma once

namespace thinwire {

// The same on every worker, since choices are made by it.
struct Link {
  double bytes_per_second = 0;  // that a worker sends while all others do so too; 0: unknown
  double round_seconds = 0;     // of a collective that moves next to nothing

  bool is_known() const { return bytes_per_second > 0; }
  // Of collectives in which a worker sends so many bytes altogether. Pre: is_known().
  double seconds(int rounds, double bytes) const { return rounds * round_seconds + bytes / bytes_per_second; }
};

}  // namespace thinwire
