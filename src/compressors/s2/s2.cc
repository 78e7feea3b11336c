#include "compressors/s2/s2.h"

#include <algorithm>

#include "compressors/s2/peeled_rows.h"
#include "compressors/s2/s2_memory.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

// For who has not measured: 1 Gb/s.
constexpr Link kUsualLink{.bytes_per_second = 125e6, .round_seconds = 200e-6};

// What all of a message's pieces together used in the last step; nothing if one of them is new.
bool expected(const RowSpace& space, RowsSeen& seen) {
  double any = 0, most = 0;
  for (const SparsePart& part : space.parts()) {
    const S2Memory& memory = memory_of(*part.piece);
    if (memory.steps() == 0) return false;
    any += static_cast<double>(memory.seen().by_any) * static_cast<double>(part.elements());
    most += static_cast<double>(memory.seen().by_most) * static_cast<double>(part.elements());
  }
  seen = {static_cast<std::uint64_t>(any), static_cast<std::uint64_t>(most)};
  return true;
}

void remember(const RowSpace& space, const RowsSeen& seen) {
  const auto share = [&](std::uint64_t elements) {
    return std::min(1.0f, static_cast<float>(static_cast<double>(elements) / static_cast<double>(space.elements())));
  };
  for (const SparsePart& part : space.parts()) memory_of(*part.piece).see({share(seen.any_elements), share(seen.most_elements)});
}

}  // namespace

S2Mode s2_mode_of(std::string_view text) {
  if (text == "exact") return S2Mode::kExact;
  if (text == "gather") return S2Mode::kGather;
  if (text == "peel") return S2Mode::kPeel;
  if (text == "sketch") return S2Mode::kSketch;
  return text == "split" ? S2Mode::kSplit : S2Mode::kAuto;
}

double s2_seconds(S2Mode mode, const RowsSeen& seen, std::uint64_t rows, std::uint64_t elements, int world_size, const Link& link) {
  const double workers = world_size, others = workers - 1;
  const double any = 4.0 * static_cast<double>(seen.any_elements), most = 4.0 * static_cast<double>(seen.most_elements);
  const double bitmap = static_cast<double>(rows) / 8;
  // A gap takes about a byte.
  const double support = std::min(bitmap, most / 4 * static_cast<double>(rows) / static_cast<double>(std::max<std::uint64_t>(elements, 1)));
  int rounds = 2;
  double bytes = 2 * others / workers * (any + bitmap);
  if (mode == S2Mode::kGather) bytes = others * (most + support);
  if (mode == S2Mode::kSplit) {
    rounds = 4;
    // All-to-all reaches about half of a ring's rate (bench/sparse).
    bytes = others / workers * (2 * most + any) + others * support;
  }
  return link.seconds(rounds, bytes);
}

S2::S2(const S2Options& options, std::unique_ptr<const Compressor> carrier) : options_(options), carrier_(std::move(carrier)) {
  if (carrier_ && options.mode != S2Mode::kExact)
    throw ArgumentError("s2 hands its rows to a further stage in mode=exact only; say s2:mode=exact/...");
}

std::unique_ptr<CompressorMemory> S2::make_memory(const Parameter& parameter, std::uint64_t chunk) const {
  const bool remembers = options_.mode == S2Mode::kAuto || options_.mode == S2Mode::kPeel || options_.mode == S2Mode::kSketch;
  if (!remembers && !carrier_) return nullptr;
  return std::make_unique<S2Memory>(carrier_ ? carrier_->make_memory(parameter, chunk) : nullptr);
}

void S2::plan_step(std::span<CompressorMemory*> memories) const {
  if (carrier_) plan_carriers(*carrier_, memories);
}

S2Mode S2::choose(const RowSpace& space, const Context& context) const {
  if (options_.mode != S2Mode::kAuto) return options_.mode;
  RowsSeen seen;
  if (!expected(space, seen)) return S2Mode::kExact;
  S2Mode best = S2Mode::kExact;
  const Link link = context.link.is_known() ? context.link : kUsualLink;
  const auto seconds = [&](S2Mode mode) {
    return s2_seconds(mode, seen, space.rows(), space.elements(), context.world_size(), link);
  };
  for (const S2Mode mode : {S2Mode::kGather, S2Mode::kSplit})
    if (seconds(mode) < seconds(best)) best = mode;
  return best;
}

Exchange S2::exchange_united(S2Mode mode, const RowSpace& space, Work& work, Context& context, RowsSeen& seen) const {
  Union united;
  Exchange unite = unite_rows(space, work, context, united);
  co_await unite;
  if (context.any_non_finite) co_return;
  seen = {united.rows.elements(), united.most_elements};
  if (mode == S2Mode::kSketch) {
    Exchange sketch = sketch_united_rows(space, united, options_.sketching, work, context);
    co_await sketch;
  } else if (carrier_) {
    Exchange carry = carry_united_rows(space, united, *carrier_, work, context);
    co_await carry;
  } else {
    Exchange sum = sum_united_rows(space, united, work, context);
    co_await sum;
  }
}

Exchange S2::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  work.report.row_elements = work.elements;
  const RowSpace space(work, options_.block, context.scratch());
  const S2Mode mode = choose(space, context);
  RowsSeen seen;
  if (mode == S2Mode::kPeel) {
    Exchange peel = peel_rows(space, work, context);
    co_await peel;
  } else if (mode == S2Mode::kGather) {
    Exchange gather = gather_rows(space, work, context, seen);
    co_await gather;
  } else if (mode == S2Mode::kSplit) {
    Exchange split = split_rows(space, work, context, seen);
    co_await split;
  } else {
    Exchange united = exchange_united(mode, space, work, context, seen);
    co_await united;
  }
  if (context.any_non_finite) co_return;
  if (options_.mode == S2Mode::kAuto) remember(space, seen);
}

}  // namespace thinwire
