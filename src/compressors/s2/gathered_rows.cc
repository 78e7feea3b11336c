#include "compressors/s2/gathered_rows.h"

#include <algorithm>
#include <memory>
#include <string>

#include "compressors/shared/message.h"
#include "compressors/s2/sparse_support.h"
#include "core/bytes.h"
#include "core/varied.h"
#include "kernels/rows.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::size_t kHeaderBytes = 8;  // the Head's word; bytes of the support

std::size_t to_floats(std::size_t bytes) { return (bytes + sizeof(float) - 1) / sizeof(float) * sizeof(float); }

// Header, support, zeros up to a multiple of four bytes, rows.
std::size_t payload_bytes(const RowSet& own, bool with_rows) {
  return kHeaderBytes + to_floats(support_bytes(own.words())) + (with_rows ? own.elements() * sizeof(float) : 0);
}

// The most that payload_bytes() can be.
std::size_t most_bytes(const RowSpace& space) {
  return kHeaderBytes + to_floats(1 + space.words() * sizeof(std::uint32_t)) + space.elements() * sizeof(float);
}

// Writes all but the rows; returns the place for them.
std::span<float> write_payload(const RowSet& own, const Head& head, std::span<std::byte> payload) {
  ByteWriter writer(payload);
  const std::size_t bytes = support_bytes(own.words());
  writer.write(head.word());
  writer.write(static_cast<std::uint32_t>(bytes));
  write_support(own.words(), writer);
  for (std::size_t i = bytes; i < to_floats(bytes); ++i) writer.write(std::byte{0});
  const auto rows = writer.take(writer.left());
  return {reinterpret_cast<float*>(rows.data()), rows.size() / sizeof(float)};
}

// Every worker's payload, read and checked.
class Payloads {
 public:
  Payloads(const RowSpace& space, std::span<const std::span<const std::byte>> payloads, bool with_rows, Head& head, Scratch& scratch)
      : sets_(scratch.take<RowSet>(payloads.size())), values_(scratch.take<std::span<const float>>(payloads.size())) {
    for (std::size_t rank = 0; rank < payloads.size(); ++rank) {
      if (payloads[rank].size() % sizeof(float) != 0)
        throw PayloadError("the rows of worker " + std::to_string(rank) + " end within a value");
      const auto words = scratch.take<std::uint32_t>(space.words());
      ByteReader reader(payloads[rank], "a worker's rows");
      head.read_gathered_word(reader.read<std::uint32_t>(), rank);
      const auto bytes = reader.read<std::uint32_t>();
      ByteReader support(reader.take(bytes), "a worker's list of rows");
      read_support(support, words);
      space.check(words);
      reader.take(to_floats(bytes) - bytes);
      std::construct_at(&sets_[rank], space, words, scratch);
      const auto rows = reader.take(with_rows ? sets_[rank].elements() * sizeof(float) : 0);
      reader.expect_end();
      values_[rank] = {reinterpret_cast<const float*>(rows.data()), rows.size() / sizeof(float)};
    }
  }

  std::span<const RowSet> sets() const { return sets_; }
  std::span<const std::span<const float>> values() const { return values_; }
  std::uint64_t most_elements() const {
    std::uint64_t most = 0;
    for (const RowSet& set : sets_) most = std::max(most, set.elements());
    return most;
  }

 private:
  std::span<RowSet> sets_;
  std::span<std::span<const float>> values_;
};

// The owners' parts of the rows: the u-th row of the union belongs to worker u mod W.
class Owners {
 public:
  Owners(const RowSpace& space, std::span<const RowSet> sets, const RowSet& all, Scratch& scratch)
      : space_(space), sets_(sets), all_(all), sent_(scratch.take<std::uint64_t>(sets.size() * sets.size())),
        owned_(scratch.take<std::uint64_t>(sets.size())) {
    std::ranges::fill(sent_, 0u);
    std::ranges::fill(owned_, 0u);
    walk([&](const SparsePart& part, std::uint64_t r, std::size_t owner, std::uint64_t) {
      owned_[owner] += part.length(r);
      for (std::size_t rank = 0; rank < sets_.size(); ++rank)
        if (sets_[rank].has(part, r)) sent_[rank * sets_.size() + owner] += part.length(r);
    });
  }

  // Elements of the longest shard on its way to an owner, and of the longest of the owners' sums.
  std::uint64_t longest_sent() const { return *std::ranges::max_element(sent_); }
  std::uint64_t longest_owned() const { return *std::ranges::max_element(owned_); }

  bool has(std::size_t rank, const SparsePart& part, std::uint64_t r) const { return sets_[rank].has(part, r); }

  // Calls body(part, row, owner, begin of the row among the packed ones of the union) for the rows of the union in order.
  template <class Body>
  void walk(const Body& body) const {
    std::uint64_t u = 0;
    for (const SparsePart& part : space_.parts())
      for (std::uint64_t w = part.first_word; w < part.first_word + part.words; ++w)
        for_each_row_of_word(part, all_, w, [&](const SparsePart&, std::uint64_t r, std::uint64_t begin) {
          body(part, r, static_cast<std::size_t>(u++ % sets_.size()), begin);
        });
  }

 private:
  const RowSpace& space_;
  std::span<const RowSet> sets_;
  const RowSet& all_;
  std::span<std::uint64_t> sent_;   // [worker][owner]
  std::span<std::uint64_t> owned_;  // [owner]
};

// Of every owner, or worker, how much of its shard has been read or written.
std::span<std::uint64_t> cursors(std::size_t count, Scratch& scratch) {
  const auto all = scratch.take<std::uint64_t>(count);
  std::ranges::fill(all, 0u);
  return all;
}

// packed: this worker's rows, `own`.
void fill_shards(const Owners& owners, const RowSet& own, Context& context, std::span<const float> packed, std::span<float> shards) {
  const auto next = cursors(static_cast<std::size_t>(context.world_size()), context.scratch());
  std::ranges::fill(shards, 0.0f);
  owners.walk([&](const SparsePart& part, std::uint64_t r, std::size_t owner, std::uint64_t) {
    if (!own.has(part, r)) return;
    const auto row = packed.subspan(own.begin(part, r), part.length(r));
    std::ranges::copy(row, shards.begin() + static_cast<std::ptrdiff_t>(owner * owners.longest_sent() + next[owner]));
    next[owner] += row.size();
  });
}

void add_shards(const Owners& owners, Context& context, std::span<const float> received, std::span<float> sums) {
  const auto own = static_cast<std::size_t>(context.rank());
  const auto workers = static_cast<std::size_t>(context.world_size());
  const auto next = cursors(workers, context.scratch());
  std::uint64_t written = 0;
  std::ranges::fill(sums, 0.0f);
  owners.walk([&](const SparsePart& part, std::uint64_t r, std::size_t owner, std::uint64_t) {
    if (owner != own) return;
    const auto target = sums.subspan(written, part.length(r));
    written += target.size();
    for (std::size_t rank = 0; rank < workers; ++rank) {
      if (!owners.has(rank, part, r)) continue;
      kernels::add_scaled(target, received.subspan(rank * owners.longest_sent() + next[rank], target.size()), 1.0f);
      next[rank] += target.size();
    }
  });
}

void order_sums(const Owners& owners, Context& context, std::span<const float> all, std::span<float> packed) {
  const auto next = cursors(static_cast<std::size_t>(context.world_size()), context.scratch());
  owners.walk([&](const SparsePart& part, std::uint64_t r, std::size_t owner, std::uint64_t begin) {
    const std::uint64_t length = part.length(r);
    std::ranges::copy(all.subspan(owner * owners.longest_owned() + next[owner], length),
                      packed.begin() + static_cast<std::ptrdiff_t>(begin));
    next[owner] += length;
  });
}

}  // namespace

RowSet union_of(const RowSpace& space, std::span<const RowSet> sets, Scratch& scratch) {
  const auto words = scratch.take<std::uint32_t>(space.words());
  std::ranges::fill(words, 0u);
  for (const RowSet& set : sets)
    for (std::size_t w = 0; w < words.size(); ++w) words[w] |= set.words()[w];
  return {space, words, scratch};
}

void add_rows(const RowSpace& space, std::span<const RowSet> sets, std::span<const std::span<const float>> values, const RowSet& all,
              Context& context, std::span<float> sums) {
  std::uint64_t elements = 0;
  for (const RowSet& set : sets) elements += set.elements();
  context.threads().for_each(space.blocks().size(), elements, [&](std::size_t b, std::size_t) {
    const RowSpace::Block& block = space.blocks()[b];
    const SparsePart& part = space.parts()[block.part];
    for (std::uint64_t w = block.first_word; w < block.first_word + block.words; ++w) {
      std::uint32_t seen = 0;
      for (std::size_t rank = 0; rank < sets.size(); ++rank) {
        for_each_row_of_word(part, sets[rank], w, [&](const SparsePart&, std::uint64_t r, std::uint64_t begin) {
          const auto sum = sums.subspan(all.begin(part, r), part.length(r));
          const auto row = values[rank].subspan(begin, sum.size());
          if (seen >> (r % 32) & 1)
            kernels::add_scaled(sum, row, 1.0f);
          else
            std::ranges::copy(row, sum.begin());
        });
        seen |= sets[rank].words()[w];
      }
    }
  });
}

Exchange gather_rows(const RowSpace& space, Work& work, Context& context, RowsSeen& seen) {
  Scratch& scratch = context.scratch();
  Head head(work, scratch);
  const RowSet own = own_rows(space, context, head);
  const auto mine = scratch.take<std::byte>(payload_bytes(own, true));
  const auto packed = write_payload(own, head, mine);
  pack_values(space, own, work, context, packed);
  measure_lossless(space, own, work, packed);
  const auto received = scratch.take<std::span<const std::byte>>(static_cast<std::size_t>(context.world_size()));
  Exchange rounds = gather_varied(mine, {.most = most_bytes(space)}, received, context);
  co_await rounds;

  context.enter(Phase::kDecode);
  const Payloads payloads(space, received, true, head, scratch);
  const RowSet all = union_of(space, payloads.sets(), scratch);
  const auto sums = scratch.take<float>(all.elements());
  if (head.finite()) add_rows(space, payloads.sets(), payloads.values(), all, context, sums);
  if (!head.finite() || !sums_fit(sums, work, context)) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  seen = {all.elements(), payloads.most_elements()};
  begin_commit(space, context);
  commit_sums(space, all, own, work, context, sums);
}

Exchange split_rows(const RowSpace& space, Work& work, Context& context, RowsSeen& seen) {
  Scratch& scratch = context.scratch();
  Head head(work, scratch);
  const RowSet own = own_rows(space, context, head);
  const auto mine = scratch.take<std::byte>(payload_bytes(own, false));
  write_payload(own, head, mine);
  const auto workers = static_cast<std::size_t>(context.world_size());
  const auto received = scratch.take<std::span<const std::byte>>(workers);
  Exchange supports_rounds = gather_varied(mine, {.most = most_bytes(space)}, received, context);
  co_await supports_rounds;

  const Payloads supports(space, received, false, head, scratch);
  if (!head.finite()) {
    context.any_non_finite = true;
    co_return;
  }
  const RowSet all = union_of(space, supports.sets(), scratch);
  const auto ordered = scratch.take<float>(all.elements());
  if (all.elements() > 0) {
    const Owners owners(space, supports.sets(), all, scratch);
    const auto packed = scratch.take<float>(own.elements());
    pack_values(space, own, work, context, packed);
    measure_lossless(space, own, work, packed);
    const auto shards = scratch.take<float>(workers * owners.longest_sent()), rows = scratch.take<float>(shards.size());
    fill_shards(owners, own, context, packed, shards);
    Await scattered = context.scatter(std::as_writable_bytes(shards), std::as_writable_bytes(rows));
    co_await scattered;

    const auto sums = scratch.take<float>(owners.longest_owned()), everyones = scratch.take<float>(workers * sums.size());
    add_shards(owners, context, rows, sums);
    Await gathered = context.gather(std::as_writable_bytes(sums), std::as_writable_bytes(everyones));
    co_await gathered;
    context.enter(Phase::kDecode);
    order_sums(owners, context, everyones, ordered);
  }
  if (!sums_fit(ordered, work, context)) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  seen = {all.elements(), supports.most_elements()};
  begin_commit(space, context);
  commit_sums(space, all, own, work, context, ordered);
}

}  // namespace thinwire
