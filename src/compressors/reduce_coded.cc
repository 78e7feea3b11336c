#include "compressors/reduce_coded.h"

#include "compressors/gather_and_average.h"
#include "compressors/scatter_reduce.h"

namespace thinwire {
namespace {

// With three workers gather sends 2 messages and scatter 4/3, which does not pay for a second encoding's time and error;
// with four it is 3 and 1.5. Shards are as long as the longest, so a message needs some chunks for every worker.
bool scatter_pays(const Work& work, int world_size) {
  constexpr std::size_t kChunksPerWorker = 4;
  return world_size >= 4 && work.pieces.size() >= kChunksPerWorker * static_cast<std::size_t>(world_size);
}

}  // namespace

Reduce reduce_of(std::string_view text) {
  if (text == "gather") return Reduce::kGather;
  return text == "scatter" ? Reduce::kScatter : Reduce::kAuto;
}

Exchange reduce_coded(const PieceCodec& codec, Reduce reduce, Work& work, Context& context) {
  const bool scatter = reduce == Reduce::kScatter || (reduce == Reduce::kAuto && scatter_pays(work, context.world_size()));
  if (scatter) return scatter_reduce(codec, work, context);
  return gather_and_average(codec, work, context);
}

}  // namespace thinwire
