#include "compressors/s2/sparse_baselines.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "compressors/s2/gathered_rows.h"
#include "compressors/shared/message.h"
#include "core/bytes.h"
#include "core/gather_varied.h"
#include "kernels/statistics.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

// A worker's count of rows; the greatest number says that its bucket is not finite.
constexpr std::uint64_t kNotFinite = ~std::uint64_t{0};

// Numbers of rows over all pieces, in order, as coordinates.
void list_rows(const RowSet& set, std::span<std::int64_t> numbers) {
  std::size_t next = 0;
  for (std::uint64_t w = 0; w < set.words().size(); ++w)
    for (std::uint32_t left = set.words()[w]; left != 0; left &= left - 1)
      numbers[next++] = static_cast<std::int64_t>(32 * w + static_cast<std::uint64_t>(std::countr_zero(left)));
}

RowSet read_rows(const RowSpace& space, std::span<const std::int64_t> numbers, Scratch& scratch) {
  const auto words = scratch.take<std::uint32_t>(space.words());
  std::ranges::fill(words, 0u);
  std::int64_t before = -1;
  for (const std::int64_t number : numbers) {
    if (number <= before || static_cast<std::uint64_t>(number) >= 32 * space.words())
      throw PayloadError("a worker's coordinates hold " + std::to_string(number) + " after " + std::to_string(before));
    words[static_cast<std::uint64_t>(number) / 32] |= std::uint32_t{1} << (number % 32);
    before = number;
  }
  space.check(words);
  return {space, words, scratch};
}

// An entry of a sparse stream.
struct Entry {
  std::uint32_t index;  // in the message
  float value;
};

constexpr std::uint64_t kStripe = 1024;

// Whose entries are whose: stripes in turns.
class Stripes {
 public:
  Stripes(std::uint64_t elements, std::size_t workers) : elements_(elements), workers_(workers) {}
  std::size_t owner(std::uint64_t i) const { return static_cast<std::size_t>(i / kStripe % workers_); }
  // Its place among its owner's entries, and back.
  std::uint64_t place(std::uint64_t i) const { return i / (kStripe * workers_) * kStripe + i % kStripe; }
  std::uint64_t entry(std::size_t of_owner, std::uint64_t place) const {
    return (place / kStripe * workers_ + of_owner) * kStripe + place % kStripe;
  }
  // Places that the owner with the most stripes has; some places of others are of no entry.
  std::uint64_t places() const {
    const std::uint64_t turn = kStripe * workers_;
    return elements_ / turn * kStripe + std::min(kStripe, elements_ % turn);
  }
  bool is_entry(std::size_t of_owner, std::uint64_t place) const { return entry(of_owner, place) < elements_; }

 private:
  std::uint64_t elements_;
  std::size_t workers_;
};

// Calls body(piece, its first element, count, owner, place at the owner) for stretches that lie in one stripe.
template <class Body>
void for_each_stretch(const Work& work, const Stripes& stripes, const Body& body) {
  for (Piece& piece : work.pieces)
    for (std::uint64_t first = 0; first < piece.gradient.size();) {
      const std::uint64_t i = piece.offset + first;
      const std::uint64_t count = std::min(kStripe - i % kStripe, piece.gradient.size() - first);
      body(piece, first, count, stripes.owner(i), stripes.place(i));
      first += count;
    }
}

void check_length(const Work& work) {
  if (work.elements >> 32 != 0)
    throw ArgumentError("sparcml numbers the entries of a message in 32 bits; this one has " + std::to_string(work.elements));
}

// A shard, or an owner's sums: dense, or the entries that are not zero.
void add_shard(std::span<const std::byte> bytes, std::uint64_t entries, bool dense, const Stripes& stripes, std::size_t owner,
               std::span<float> sums) {
  if (dense) {
    const std::span values(reinterpret_cast<const float*>(bytes.data()), sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
    return;
  }
  ByteReader reader(bytes, "a sparse stream");
  for (std::uint64_t e = 0; e < entries; ++e) {
    const auto entry = reader.read<Entry>();
    const std::uint64_t place = stripes.place(entry.index);
    if (stripes.owner(entry.index) != owner || place >= sums.size() || !stripes.is_entry(owner, place))
      throw PayloadError("a sparse stream holds entry " + std::to_string(entry.index) + ", which is not its owner's");
    sums[place] += entry.value;
  }
}

void count_entries(const Work& work, const Stripes& stripes, std::span<std::uint32_t> counts) {
  std::ranges::fill(counts, 0u);
  for_each_stretch(work, stripes, [&](Piece& piece, std::uint64_t first, std::uint64_t count, std::size_t owner, std::uint64_t) {
    std::uint32_t entries = 0;
    for (const float value : piece.values().subspan(first, count)) entries += value != 0 ? 1 : 0;
    counts[owner] += entries;
  });
}

// next: of every owner, how many entries its shard holds already.
void write_shards(const Work& work, const Stripes& stripes, bool dense, std::uint64_t shard_bytes, std::span<std::uint64_t> next,
                  std::span<std::byte> shards) {
  std::ranges::fill(shards, std::byte{0});
  std::ranges::fill(next, 0u);
  for_each_stretch(work, stripes, [&](Piece& piece, std::uint64_t first, std::uint64_t count, std::size_t owner, std::uint64_t place) {
    const auto values = piece.values().subspan(first, count);
    const auto shard = shards.subspan(owner * shard_bytes, shard_bytes);
    if (dense) {
      std::memcpy(shard.data() + sizeof(float) * place, values.data(), values.size_bytes());
      return;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] == 0) continue;
      const Entry entry{static_cast<std::uint32_t>(piece.offset + first + i), values[i]};
      std::memcpy(shard.data() + sizeof(Entry) * next[owner]++, &entry, sizeof(Entry));
    }
  });
}

// Dense where that is shorter.
std::span<const std::byte> encode_sums(std::span<const float> sums, const Stripes& stripes, std::size_t owner, Scratch& scratch) {
  const auto entries = static_cast<std::uint64_t>(std::ranges::count_if(sums, [](float sum) { return sum != 0; }));
  if (entries * sizeof(Entry) >= sums.size_bytes()) return std::as_bytes(sums);
  const auto stream = scratch.take<Entry>(entries);
  std::size_t next = 0;
  for (std::uint64_t place = 0; place < sums.size(); ++place)
    if (sums[place] != 0) stream[next++] = {static_cast<std::uint32_t>(stripes.entry(owner, place)), sums[place]};
  return std::as_bytes(stream);
}

}  // namespace

Exchange Coordinates::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  Scratch& scratch = context.scratch();
  const auto workers = static_cast<std::size_t>(context.world_size());
  const RowSpace space(work, block_, scratch);
  const auto words = scratch.take<std::uint32_t>(space.words());
  const bool finite = mark_used_rows(space, context, words);
  if (context.flag_needed) context.finite = context.finite && finite;
  const RowSet own(space, words, scratch);
  const auto my_count = scratch.take<std::uint64_t>(2), counts = scratch.take<std::uint64_t>(2 * workers);
  my_count[0] = context.finite ? own.rows() : kNotFinite;
  my_count[1] = own.elements();
  Await counting = context.gather(std::as_writable_bytes(my_count), std::as_writable_bytes(counts));
  co_await counting;
  expect_own(std::as_bytes(my_count), std::as_bytes(counts.subspan(2 * static_cast<std::size_t>(context.rank()), 2)), "count of rows");

  std::uint64_t most_rows = 0, most_elements = 0;
  for (std::size_t rank = 0; rank < workers; ++rank) {
    if (counts[2 * rank] == kNotFinite) context.any_non_finite = true;
    else if (counts[2 * rank] > space.rows() || counts[2 * rank + 1] > space.elements())
      throw PayloadError("worker " + std::to_string(rank) + " announces more rows than there are");
    most_rows = std::max(most_rows, counts[2 * rank]);
    most_elements = std::max(most_elements, counts[2 * rank + 1]);
  }
  if (context.any_non_finite || most_rows == 0) co_return;
  const auto numbers = scratch.take<std::int64_t>(most_rows), all_numbers = scratch.take<std::int64_t>(workers * most_rows);
  std::ranges::fill(numbers, 0);
  list_rows(own, numbers);
  Await numbering = context.gather(std::as_writable_bytes(numbers), std::as_writable_bytes(all_numbers));
  co_await numbering;

  const auto packed = scratch.take<float>(most_elements), all = scratch.take<float>(workers * most_elements);
  std::ranges::fill(packed, 0.0f);
  pack_values(space, own, work, context, packed);
  measure_lossless(space, own, work, packed);
  Await round = context.gather(std::as_writable_bytes(packed), std::as_writable_bytes(all));
  co_await round;

  context.enter(Phase::kDecode);
  const auto sets = scratch.take<RowSet>(workers);
  const auto values = scratch.take<std::span<const float>>(workers);
  for (std::size_t rank = 0; rank < workers; ++rank) {
    std::construct_at(&sets[rank], read_rows(space, all_numbers.subspan(rank * most_rows, counts[2 * rank]), scratch));
    if (sets[rank].elements() > most_elements) throw PayloadError("worker " + std::to_string(rank) + " announced too few values");
    values[rank] = all.subspan(rank * most_elements, sets[rank].elements());
  }
  if (flagged(all, context)) co_return;
  average_rows(space, sets, values, context);
  clear_residuals(space, own, context);
}

Exchange SparCml::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  check_length(work);
  Scratch& scratch = context.scratch();
  const auto workers = static_cast<std::size_t>(context.world_size()), rank = static_cast<std::size_t>(context.rank());
  const Stripes stripes(work.elements, workers);
  const bool measured = !work.pieces.empty() && work.pieces.front().has_residual();
  bool finite = true;
  for (Piece& piece : work.pieces) {
    if (measured) finite = open(piece, work).finite && finite;
    else finite = kernels::scan(piece.values()).finite && finite;
  }
  if (context.flag_needed) context.finite = context.finite && finite;

  const auto counts = scratch.take<std::uint32_t>(workers), all_counts = scratch.take<std::uint32_t>(workers * workers);
  count_entries(work, stripes, counts);
  if (!context.finite) std::ranges::fill(counts, ~std::uint32_t{0});
  Await counting = context.gather(std::as_writable_bytes(counts), std::as_writable_bytes(all_counts));
  co_await counting;
  expect_own(std::as_bytes(counts), std::as_bytes(all_counts.subspan(rank * workers, workers)), "count of entries");
  const std::uint64_t longest = *std::ranges::max_element(all_counts);
  context.any_non_finite = context.any_non_finite || longest == ~std::uint32_t{0};
  if (context.any_non_finite) co_return;
  if (longest > stripes.places()) throw PayloadError("a worker announces more entries than there are");

  const bool dense = longest * sizeof(Entry) >= stripes.places() * sizeof(float);
  const std::uint64_t shard_bytes = dense ? stripes.places() * sizeof(float) : longest * sizeof(Entry);
  const auto shards = scratch.take<std::byte>(workers * shard_bytes), received = scratch.take<std::byte>(shards.size());
  write_shards(work, stripes, dense, shard_bytes, scratch.take<std::uint64_t>(workers), shards);
  Await scattering = context.scatter(shards, received);
  co_await scattering;

  const auto sums = scratch.take<float>(stripes.places());
  std::ranges::fill(sums, 0.0f);
  for (std::size_t from = 0; from < workers; ++from)
    add_shard(received.subspan(from * shard_bytes, shard_bytes), all_counts[from * workers + rank], dense, stripes, rank, sums);
  const auto mine = encode_sums(sums, stripes, rank, scratch);
  const auto everyones = scratch.take<std::span<const std::byte>>(workers);
  Exchange gathering = gather_varied(mine, sums.size_bytes(), everyones, context);
  co_await gathering;

  context.enter(Phase::kDecode);
  const auto means = scratch.take<float>(workers * sums.size());
  std::ranges::fill(means, 0.0f);
  for (std::size_t owner = 0; owner < workers; ++owner) {
    const bool is_dense = everyones[owner].size() == sums.size_bytes();
    if (!is_dense && everyones[owner].size() % sizeof(Entry) != 0)
      throw PayloadError("the sums of worker " + std::to_string(owner) + " end within an entry");
    add_shard(everyones[owner], everyones[owner].size() / sizeof(Entry), is_dense, stripes, owner,
              means.subspan(owner * sums.size(), sums.size()));
  }
  if (flagged(means, context)) co_return;
  const float weight = 1.0f / static_cast<float>(workers);
  for_each_stretch(work, stripes, [&](Piece& piece, std::uint64_t first, std::uint64_t count, std::size_t owner, std::uint64_t place) {
    const float* const source = means.data() + owner * sums.size() + place;
    for (std::uint64_t i = 0; i < count; ++i) piece.mean()[first + i] = weight * source[i];
  });
  for (Piece& piece : work.pieces) {
    std::ranges::fill(piece.residual, 0.0f);
    piece.stage = Piece::Stage::kDone;
  }
}

}  // namespace thinwire
