#include "compressors/shared/reduce_coded.h"

#include "compressors/shared/average_at_owners.h"
#include "compressors/shared/gather_and_average.h"
#include "compressors/shared/scatter_reduce.h"
#include "compressors/shared/spread_from_owners.h"

namespace thinwire {
namespace {

// By the time on the link, if that is known: scatter takes a round more, and sends less from three workers on, unless its
// shards, which are as long as the longest, are mostly padding. Else with three workers gather sends 2 messages and scatter
// 4/3, which does not pay for a second encoding's time and error; with four it is 3 and 1.5.
bool scatter_pays(const Codec& codec, const Work& work, Context& context) {
  const auto workers = static_cast<std::size_t>(context.world_size());
  if (!context.link.is_known()) {
    constexpr std::size_t kChunksPerWorker = 4;
    return workers >= 4 && work.pieces.size() >= kChunksPerWorker * workers;
  }
  const ScatteredBytes bytes = scattered_bytes(codec, work, context);
  const auto others = static_cast<double>(workers - 1);
  return context.link.seconds(2, 2 * others * static_cast<double>(bytes.longest_shard)) <
         context.link.seconds(1, others * static_cast<double>(bytes.all));
}

}  // namespace

Reduce reduce_of(std::string_view text) {
  if (text == "gather") return Reduce::kGather;
  return text == "scatter" ? Reduce::kScatter : Reduce::kAuto;
}

double bits_sent(double bits, std::string_view reduce) { return reduce_of(reduce) == Reduce::kGather ? bits : 2 * bits; }

Exchange exchange_by_owners(const Codec& codec, Work& work, Context& context) {
  return work.direction == Direction::kToOwners ? average_at_owners(codec, work, context) : spread_from_owners(codec, work, context);
}

Exchange reduce_coded(const Codec& codec, Reduce reduce, Work& work, Context& context) {
  if (work.direction != Direction::kToAll) return exchange_by_owners(codec, work, context);
  const bool scatter = reduce == Reduce::kScatter || (reduce == Reduce::kAuto && scatter_pays(codec, work, context));
  if (scatter) return scatter_reduce(codec, work, context);
  return gather_and_average(codec, work, context);
}

}  // namespace thinwire
