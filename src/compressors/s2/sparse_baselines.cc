#include "compressors/s2/sparse_baselines.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "compressors/s2/gathered_rows.h"
#include "compressors/shared/message.h"
#include "core/bytes.h"
#include "core/varied.h"
#include "kernels/statistics.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

// What Coordinates gathers first.
struct Count {
  std::uint64_t rows;
  std::uint32_t word;  // the Head's
  std::uint32_t zero = 0;
};

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

// Calls body(first, count, owner, place at the owner) for all stripes of a message.
template <class Body>
void for_each_stripe(std::uint64_t elements, const Stripes& stripes, const Body& body) {
  for (std::uint64_t first = 0; first < elements; first += kStripe)
    body(first, std::min(kStripe, elements - first), stripes.owner(first), stripes.place(first));
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

void count_entries(std::span<const float> values, const Stripes& stripes, std::span<std::uint32_t> counts) {
  std::ranges::fill(counts, 0u);
  for_each_stripe(values.size(), stripes, [&](std::uint64_t first, std::uint64_t count, std::size_t owner, std::uint64_t) {
    const auto stripe = values.subspan(first, count);
    counts[owner] += static_cast<std::uint32_t>(std::ranges::count_if(stripe, [](float value) { return value != 0; }));
  });
}

// next: of every owner, how many entries its shard holds already.
void write_shards(std::span<const float> values, const Stripes& stripes, bool dense, std::uint64_t shard_bytes,
                  std::span<std::uint64_t> next, std::span<std::byte> shards) {
  std::ranges::fill(shards, std::byte{0});
  std::ranges::fill(next, 0u);
  for_each_stripe(values.size(), stripes, [&](std::uint64_t first, std::uint64_t count, std::size_t owner, std::uint64_t place) {
    const auto stripe = values.subspan(first, count);
    const auto shard = shards.subspan(owner * shard_bytes, shard_bytes);
    if (dense) {
      std::memcpy(shard.data() + sizeof(float) * place, stripe.data(), stripe.size_bytes());
      return;
    }
    for (std::size_t i = 0; i < stripe.size(); ++i) {
      if (stripe[i] == 0) continue;
      const Entry entry{static_cast<std::uint32_t>(first + i), stripe[i]};
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

// Gathers which rows all workers have, and these rows. Leaves in sets and values, one for each worker, those of which there are any.
Exchange gather_coordinates(const RowSpace& space, const RowSet& own, std::span<const Count> counts, Work& work, Context& context,
                            std::span<RowSet> sets, std::span<std::span<const float>> values) {
  Scratch& scratch = context.scratch();
  std::uint64_t most_rows = 0, most_elements = 0;
  for (const Count& count : counts) most_rows = std::max(most_rows, count.rows);
  const auto numbers = scratch.take<std::int64_t>(most_rows), all_numbers = scratch.take<std::int64_t>(counts.size() * most_rows);
  std::ranges::fill(numbers, 0);
  list_rows(own, numbers);
  Await numbering = context.gather(std::as_writable_bytes(numbers), std::as_writable_bytes(all_numbers));
  co_await numbering;
  const auto returned = all_numbers.subspan(static_cast<std::size_t>(context.rank()) * most_rows, most_rows);
  expect_own(std::as_bytes(numbers), std::as_bytes(returned), "list of rows");
  for (std::size_t rank = 0; rank < sets.size(); ++rank) {
    std::construct_at(&sets[rank], read_rows(space, all_numbers.subspan(rank * most_rows, counts[rank].rows), scratch));
    most_elements = std::max(most_elements, sets[rank].elements());
  }

  const auto packed = scratch.take<float>(most_elements), all = scratch.take<float>(counts.size() * most_elements);
  std::ranges::fill(packed, 0.0f);
  pack_values(space, own, work, context, packed);
  measure_lossless(space, own, work, packed);
  Await round = context.gather(std::as_writable_bytes(packed), std::as_writable_bytes(all));
  co_await round;
  for (std::size_t rank = 0; rank < sets.size(); ++rank) values[rank] = all.subspan(rank * most_elements, sets[rank].elements());
}

// What this worker has to send of a whole message. Notes in `head` whether it is finite.
std::span<const float> read_message(Work& work, Head& head, Context& context) {
  const auto values = context.scratch().take<float>(work.elements);
  for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t) {
    const kernels::Opened opened = read_values(piece, work, values.subspan(piece.offset, piece.elements()));
    head.note(i, opened);
    if (work.measured) work.report.energies[i] = static_cast<double>(opened.sum.sum_squares);
  });
  return values;
}

}  // namespace

Exchange Coordinates::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  work.report.row_elements = work.elements;
  Scratch& scratch = context.scratch();
  const auto workers = static_cast<std::size_t>(context.world_size());
  const RowSpace space(work, block_, scratch);
  Head head(work, scratch);
  const RowSet own = own_rows(space, context, head);
  const auto count = scratch.take<Count>(1), counts = scratch.take<Count>(workers);
  count[0] = {.rows = own.rows(), .word = head.word()};
  Await counting = context.gather(std::as_writable_bytes(count), std::as_writable_bytes(counts));
  co_await counting;
  expect_own(std::as_bytes(count), std::as_bytes(counts.subspan(static_cast<std::size_t>(context.rank()), 1)), "count of rows");
  bool any_rows = false;
  for (std::size_t rank = 0; rank < workers; ++rank) {
    head.read_gathered_word(counts[rank].word, rank);
    if (counts[rank].rows > space.rows())
      throw PayloadError("worker " + std::to_string(rank) + " announces more rows than there are");
    any_rows = any_rows || counts[rank].rows > 0;
  }
  if (!head.finite()) {
    context.any_non_finite = true;
    co_return;
  }
  const auto sets = scratch.take<RowSet>(any_rows ? workers : 0);
  const auto values = scratch.take<std::span<const float>>(sets.size());
  if (any_rows) {
    Exchange rounds = gather_coordinates(space, own, counts, work, context, sets, values);
    co_await rounds;
  }

  context.enter(Phase::kDecode);
  const RowSet all = union_of(space, sets, scratch);
  const auto sums = scratch.take<float>(all.elements());
  add_rows(space, sets, values, all, context, sums);
  if (!sums_fit(sums, work, context)) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  begin_commit(space, context);
  commit_sums(space, all, own, work, context, sums);
}

Exchange SparCml::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  check_length(work);
  work.report.row_elements = work.elements;
  Scratch& scratch = context.scratch();
  const auto workers = static_cast<std::size_t>(context.world_size()), rank = static_cast<std::size_t>(context.rank());
  const Stripes stripes(work.elements, workers);
  Head head(work, scratch);
  const auto values = read_message(work, head, context);

  // The Head's word, and how many entries there are for each owner.
  const auto counts = scratch.take<std::uint32_t>(1 + workers), all_counts = scratch.take<std::uint32_t>(counts.size() * workers);
  counts[0] = head.word();
  count_entries(values, stripes, counts.subspan(1));
  Await counting = context.gather(std::as_writable_bytes(counts), std::as_writable_bytes(all_counts));
  co_await counting;
  const auto counts_of = [=](std::size_t from) { return all_counts.subspan(from * counts.size(), counts.size()); };
  expect_own(std::as_bytes(counts), std::as_bytes(counts_of(rank)), "count of entries");
  std::uint64_t longest = 0;
  for (std::size_t from = 0; from < workers; ++from) {
    head.read_gathered_word(counts_of(from)[0], from);
    longest = std::max<std::uint64_t>(longest, *std::ranges::max_element(counts_of(from).subspan(1)));
  }
  if (!head.finite()) {
    context.any_non_finite = true;
    co_return;
  }
  if (longest > stripes.places()) throw PayloadError("a worker announces more entries than there are");

  const bool dense = longest * sizeof(Entry) >= stripes.places() * sizeof(float);
  const std::uint64_t shard_bytes = dense ? stripes.places() * sizeof(float) : longest * sizeof(Entry);
  const auto shards = scratch.take<std::byte>(workers * shard_bytes), received = scratch.take<std::byte>(shards.size());
  write_shards(values, stripes, dense, shard_bytes, scratch.take<std::uint64_t>(workers), shards);
  Await scattering = context.scatter(shards, received);
  co_await scattering;

  const auto sums = scratch.take<float>(stripes.places());
  std::ranges::fill(sums, 0.0f);
  for (std::size_t from = 0; from < workers; ++from)
    add_shard(received.subspan(from * shard_bytes, shard_bytes), counts_of(from)[1 + rank], dense, stripes, rank, sums);
  const auto mine = encode_sums(sums, stripes, rank, scratch);
  const auto everyones = scratch.take<std::span<const std::byte>>(workers);
  Exchange gathering = gather_varied(mine, {.most = sums.size_bytes()}, everyones, context);
  co_await gathering;

  context.enter(Phase::kDecode);
  const auto all_sums = scratch.take<float>(workers * sums.size());
  std::ranges::fill(all_sums, 0.0f);
  for (std::size_t owner = 0; owner < workers; ++owner) {
    const bool is_dense = everyones[owner].size() == sums.size_bytes();
    if (!is_dense && everyones[owner].size() % sizeof(Entry) != 0)
      throw PayloadError("the sums of worker " + std::to_string(owner) + " end within an entry");
    add_shard(everyones[owner], everyones[owner].size() / sizeof(Entry), is_dense, stripes, owner,
              all_sums.subspan(owner * sums.size(), sums.size()));
  }
  if (!sums_fit(all_sums, work, context)) {
    context.any_non_finite = true;
    co_return;
  }
  const auto means = scratch.take<float>(work.elements);
  const float weight = 1.0f / static_cast<float>(workers);
  for_each_stripe(work.elements, stripes, [&](std::uint64_t first, std::uint64_t count, std::size_t owner, std::uint64_t place) {
    const float* const source = all_sums.data() + owner * sums.size() + place;
    for (std::uint64_t i = 0; i < count; ++i) means[first + i] = weight * source[i];
  });
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t) {
    commit_lossless(work, i, means.subspan(piece.offset, piece.elements()));
  });
}

}  // namespace thinwire
