#include "compressors/shared/scatter_reduce.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <type_traits>

#include "compressors/shared/coded_message.h"
#include "compressors/shared/message.h"

namespace thinwire {
namespace {

std::size_t owner_of(const Piece& piece, std::size_t world_size) { return piece.chunk % world_size; }

// The message's pieces by owner, and the common length of the owners' shards: the longest of their messages.
class Shards {
 public:
  Shards(const PieceCodec& codec, const Work& work, Context& context)
      : pieces_(context.scratch().take<Piece*>(work.pieces.size())),
        begins_(context.scratch().take<std::size_t>(static_cast<std::size_t>(context.world_size()) + 1)),
        formats_(context.scratch().take<CodedMessage>(count())) {
    std::size_t next = 0;
    for (std::size_t owner = 0; owner < count(); ++owner) {
      begins_[owner] = next;
      for (Piece& piece : work.pieces)
        if (owner_of(piece, count()) == owner) pieces_[next++] = &piece;
      const auto own = pieces_.subspan(begins_[owner], next - begins_[owner]);
      std::construct_at(&formats_[owner], codec, own, context.scratch());
      bytes_ = std::max(bytes_, format(owner).bytes());
    }
    begins_[count()] = next;
  }

  std::size_t count() const { return begins_.size() - 1; }
  std::size_t bytes() const { return bytes_; }
  std::span<Piece* const> pieces() const { return pieces_; }
  std::span<Piece* const> pieces(std::size_t owner) const {
    return pieces_.subspan(begins_[owner], begins_[owner + 1] - begins_[owner]);
  }
  const CodedMessage& format(std::size_t owner) const { return formats_[owner]; }
  template <class Byte>
  std::span<Byte> shard(std::span<Byte> all, std::size_t index) const {
    return all.subspan(index * bytes_, bytes_);
  }

  // Of the piece at `place` in pieces(): whose it is, and its place among its owner's.
  std::size_t owner(std::size_t place) const { return owner_of(*pieces_[place], count()); }
  std::size_t place_at_owner(std::size_t place) const { return place - begins_[owner(place)]; }
  template <class Byte>
  std::span<Byte> code(std::span<Byte> all, std::size_t place) const {
    return format(owner(place)).code(shard(all, owner(place)), place_at_owner(place));
  }

 private:
  static_assert(std::is_trivially_destructible_v<CodedMessage>, "scratch calls no destructors");

  std::span<Piece*> pieces_;
  std::span<std::size_t> begins_;  // of the owners' pieces
  std::span<CodedMessage> formats_;
  std::size_t bytes_ = 0;
};

// All shards are completed after the last is encoded: any owner is told if anything is not finite.
void encode_shards(const PieceCodec& codec, const Shards& shards, const Work& work, Context& context,
                   std::span<std::byte> all) {
  context.finite = context.finite && open_and_encode(codec, shards.pieces(), work, context,
                                                     [&](std::size_t place) { return shards.code(all, place); });
  for (std::size_t owner = 0; owner < shards.count(); ++owner)
    shards.format(owner).complete(shards.shard(all, owner), context.finite);
}

// The owner's part: averages what all workers sent of its pieces and encodes the means.
class Owner {
 public:
  Owner(const PieceCodec& codec, const Shards& shards, const Work& work, Context& context,
        std::span<const std::byte> received)
      : codec_(codec),
        shards_(shards),
        work_(work),
        threads_(context.threads()),
        received_(received),
        rank_(static_cast<std::size_t>(context.rank())),
        format_(shards.format(rank_)) {
    for (const Piece* piece : shards.pieces(rank_)) largest_ = std::max(largest_, piece->gradient.size());
    means_ = context.scratch().take<float>(threads_.threads() * largest_);
  }

  void encode_means(std::span<std::byte> second) {
    std::fill(second.begin(), second.end(), std::byte{0});
    bool finite = true;
    for (std::size_t rank = 0; rank < shards_.count(); ++rank)
      finite = format_.read_header(from(rank), static_cast<int>(rank)) && finite;
    if (finite) {
      for (std::size_t rank = 0; rank < shards_.count(); ++rank) format_.check_codes(from(rank));
      finite = encode_pieces(second);
      if (!finite) std::fill(second.begin(), second.end(), std::byte{0});
    }
    format_.seal(second, finite);
  }

 private:
  std::span<const std::byte> from(std::size_t rank) const { return shards_.shard(received_, rank); }

  bool used_by_any(std::size_t piece) const {
    for (std::size_t rank = 0; rank < shards_.count(); ++rank)
      if (format_.used(from(rank), piece)) return true;
    return false;
  }

  // False if what a mean loses, times W, leaves the range of float, so that no residual can hold it.
  bool encode_pieces(std::span<std::byte> second) {
    const std::span<Piece* const> pieces = shards_.pieces(rank_);
    for (std::size_t i = 0; i < pieces.size(); ++i)
      if (used_by_any(i)) format_.mark_used(second, i);
    std::atomic<bool> finite = true;
    threads_.for_each(pieces.size(), format_.elements() * shards_.count(), [&](std::size_t i, std::size_t thread) {
      if (!format_.used(second, i) || !finite.load(std::memory_order_relaxed)) return;
      const auto mean = means_.subspan(thread * largest_, pieces[i]->gradient.size());
      if (!encode_piece(*pieces[i], i, mean, format_.code(second, i))) finite.store(false, std::memory_order_relaxed);
    });
    return finite;
  }

  bool encode_piece(Piece& piece, std::size_t index, std::span<float> mean, std::span<std::byte> code) {
    for (std::size_t rank = 0; rank < shards_.count(); ++rank)
      codec_.decode(format_.code(from(rank), index), piece, 1.0f / static_cast<float>(shards_.count()), rank > 0, mean);
    const kernels::Magnitudes magnitudes = kernels::measure(mean);
    encode_mean(piece, mean, magnitudes, code);
    // A mean that large may be foreign bytes; most of the time there is nothing to look for.
    const bool may_overflow = !std::isfinite(4 * static_cast<float>(shards_.count()) * magnitudes.largest);
    return !may_overflow || kernels::scan(piece.residual).finite;
  }

  // Leaves W times what the mean loses in the residual.
  void encode_mean(Piece& piece, std::span<float> mean, const kernels::Magnitudes& magnitudes, std::span<std::byte> code) {
    Piece second;
    second.first = piece.first;
    second.residual = mean;
    second.memory = piece.memory;
    second.encoding = Piece::Encoding::kSecond;
    second.random = piece.random.second();
    codec_.encode(second, magnitudes, code);
    if (!work_.feedback) return;
    const auto workers = static_cast<float>(shards_.count());
    for (std::size_t i = 0; i < mean.size(); ++i) piece.residual[i] += workers * mean[i];
  }

  const PieceCodec& codec_;
  const Shards& shards_;
  const Work& work_;
  ThreadPool& threads_;
  std::span<const std::byte> received_;
  std::size_t rank_;
  const CodedMessage& format_;
  std::size_t largest_ = 0;  // of its pieces
  std::span<float> means_;   // room for one in each thread
};

void decode_means(const PieceCodec& codec, const Shards& shards, std::span<const std::byte> all, const Work& work,
                  Context& context) {
  context.threads().for_each(shards.pieces().size(), work.elements, [&](std::size_t place, std::size_t) {
    Piece& piece = *shards.pieces()[place];
    const std::size_t owner = shards.owner(place);
    if (!shards.format(owner).used(shards.shard(all, owner), shards.place_at_owner(place))) return skip(piece);
    codec.decode(shards.code(all, place), piece, 1.0f, false, piece.mean());
    piece.stage = Piece::Stage::kDone;
  });
}

// Throws PayloadError before anything is changed.
bool all_finite(const Shards& shards, std::span<const std::byte> all) {
  bool finite = true;
  for (std::size_t owner = 0; owner < shards.count(); ++owner)
    finite = shards.format(owner).read_header(shards.shard(all, owner), static_cast<int>(owner)) && finite;
  for (std::size_t owner = 0; finite && owner < shards.count(); ++owner)
    shards.format(owner).check_used_codes(shards.shard(all, owner));
  return finite;
}

}  // namespace

ScatteredBytes scattered_bytes(const PieceCodec& codec, const Work& work, Context& context) {
  ScatteredBytes bytes;
  const auto shards = context.scratch().take<std::size_t>(static_cast<std::size_t>(context.world_size()));
  std::fill(shards.begin(), shards.end(), 0);
  for (const Piece& piece : work.pieces) {
    const std::size_t encoded = codec.encoded_bytes(piece);
    bytes.all += encoded;
    bytes.longest_shard = std::max(bytes.longest_shard, shards[owner_of(piece, shards.size())] += encoded);
  }
  return bytes;
}

Exchange scatter_reduce(const PieceCodec& codec, Work& work, Context& context) {
  const Shards shards(codec, work, context);
  const std::size_t all_bytes = shards.bytes() * shards.count();
  auto mine = context.scratch().take<std::byte>(all_bytes);
  auto received = context.scratch().take<std::byte>(all_bytes);
  encode_shards(codec, shards, work, context, mine);
  // What the first encoding lost; the owners' second errors will come on top of it.
  if (work.measured) work.first_error = residual_energy(work, context);
  Await scattered = context.scatter(mine, received);
  co_await scattered;

  context.purpose = Purpose::kSecond;
  auto second = context.scratch().take<std::byte>(shards.bytes());
  auto all = context.scratch().take<std::byte>(all_bytes);
  Owner owner(codec, shards, work, context, received);
  owner.encode_means(second);
  Await gathered = context.gather(second, all);
  co_await gathered;

  context.purpose = Purpose::kPayload;
  context.enter(Phase::kDecode);
  context.any_non_finite = !all_finite(shards, all);
  if (!context.any_non_finite) decode_means(codec, shards, all, work, context);
}

}  // namespace thinwire
