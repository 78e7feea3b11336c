#include "compressors/scatter_reduce.h"

#include <algorithm>
#include <cmath>

#include "compressors/coded_message.h"
#include "compressors/message.h"

namespace thinwire {
namespace {

std::size_t owner_of(const Piece& piece, std::size_t world_size) { return piece.chunk % world_size; }

// The message's pieces by owner, and the common length of the owners' shards: the longest of their messages.
class Shards {
 public:
  Shards(const PieceCodec& codec, const Work& work, Context& context)
      : pieces_(context.scratch().take<Piece*>(work.pieces.size())),
        begins_(context.scratch().take<std::size_t>(static_cast<std::size_t>(context.world_size()) + 1)),
        codec_(codec) {
    std::size_t next = 0;
    for (std::size_t owner = 0; owner < count(); ++owner) {
      begins_[owner] = next;
      for (Piece& piece : work.pieces)
        if (owner_of(piece, count()) == owner) pieces_[next++] = &piece;
    }
    begins_[count()] = next;
    for (std::size_t owner = 0; owner < count(); ++owner) bytes_ = std::max(bytes_, format(owner).bytes());
  }

  std::size_t count() const { return begins_.size() - 1; }
  std::size_t bytes() const { return bytes_; }
  std::span<Piece* const> pieces(std::size_t owner) const {
    return pieces_.subspan(begins_[owner], begins_[owner + 1] - begins_[owner]);
  }
  CodedMessage format(std::size_t owner) const { return CodedMessage(codec_, pieces(owner)); }
  template <class Byte>
  std::span<Byte> shard(std::span<Byte> all, std::size_t index) const {
    return all.subspan(index * bytes_, bytes_);
  }

 private:
  std::span<Piece*> pieces_;
  std::span<std::size_t> begins_;
  const PieceCodec& codec_;
  std::size_t bytes_ = 0;
};

// All shards are sealed after the last is encoded: any owner is told if anything is not finite.
void encode_shards(const PieceCodec& codec, const Shards& shards, Work& work, Context& context, std::span<std::byte> all) {
  for (std::size_t owner = 0; owner < shards.count(); ++owner) {
    const auto shard = shards.shard(all, owner);
    context.finite = context.finite && open_and_encode(codec, shards.format(owner), shards.pieces(owner), work, shard);
    if (!context.finite) std::fill(shard.begin(), shard.end(), std::byte{0});
  }
  for (std::size_t owner = 0; owner < shards.count(); ++owner) shards.format(owner).seal(shards.shard(all, owner), context.finite);
}

// The owner's part: averages what all workers sent of its pieces and encodes the means.
class Owner {
 public:
  Owner(const PieceCodec& codec, const Shards& shards, Work& work, Context& context, std::span<const std::byte> received)
      : codec_(codec),
        shards_(shards),
        work_(work),
        received_(received),
        rank_(static_cast<std::size_t>(context.rank())),
        format_(shards.format(rank_)) {
    std::size_t largest = 0;
    for (const Piece* piece : shards.pieces(rank_)) largest = std::max(largest, piece->gradient.size());
    mean_ = context.scratch().take<float>(largest);
  }

  void encode_means(std::span<std::byte> second) {
    std::fill(second.begin(), second.end(), std::byte{0});
    bool finite = true;
    for (std::size_t rank = 0; rank < shards_.count(); ++rank)
      finite = format_.read_header(from(rank), static_cast<int>(rank)) && finite;
    if (finite) {
      for (std::size_t rank = 0; rank < shards_.count(); ++rank) format_.check_codes(from(rank));
      finite = encode_pieces(second);
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
    std::size_t offset = format_.first_code();
    for (std::size_t i = 0; i < shards_.pieces(rank_).size(); ++i) {
      const std::size_t begin = offset;
      const std::span<std::byte> code = format_.next_code(second, i, offset);
      if (!used_by_any(i)) continue;
      format_.mark_used(second, i);
      Piece& piece = *shards_.pieces(rank_)[i];
      const auto mean = mean_.first(piece.gradient.size());
      for (std::size_t rank = 0; rank < shards_.count(); ++rank)
        codec_.decode(from(rank).subspan(begin, code.size()), 1.0f / static_cast<float>(shards_.count()), rank > 0, mean);
      const kernels::Magnitudes magnitudes = kernels::measure(mean);
      encode_mean(piece, mean, magnitudes, code);
      // A mean that large may be foreign bytes; most of the time there is nothing to look for.
      const bool may_overflow = !std::isfinite(4 * static_cast<float>(shards_.count()) * magnitudes.largest);
      if (may_overflow && !kernels::scan(piece.residual).finite) return false;
    }
    return true;
  }

  // Leaves W times what the mean loses in the residual.
  void encode_mean(Piece& piece, std::span<float> mean, const kernels::Magnitudes& magnitudes, std::span<std::byte> code) {
    Piece second;
    second.first = piece.first;
    second.residual = mean;
    second.memory = piece.memory;
    second.encoding = Piece::Encoding::kSecond;
    codec_.encode(second, magnitudes, code);
    if (!work_.feedback) return;
    const auto workers = static_cast<float>(shards_.count());
    for (std::size_t i = 0; i < mean.size(); ++i) piece.residual[i] += workers * mean[i];
  }

  const PieceCodec& codec_;
  const Shards& shards_;
  Work& work_;
  std::span<const std::byte> received_;
  std::size_t rank_;
  CodedMessage format_;
  std::span<float> mean_;
};

// What the first encoding lost; the owners' second errors will come on top of it.
void measure_first_error(Work& work) {
  double error = 0;
  for (const Piece& piece : work.pieces) error += kernels::squared_norm(piece.residual);
  work.first_error = error;
}

void decode_means(const PieceCodec& codec, const Shards& shards, std::span<const std::byte> all) {
  for (std::size_t owner = 0; owner < shards.count(); ++owner) {
    const CodedMessage format = shards.format(owner);
    const auto shard = shards.shard(all, owner);
    std::size_t offset = format.first_code();
    for (std::size_t i = 0; i < shards.pieces(owner).size(); ++i) {
      Piece& piece = *shards.pieces(owner)[i];
      const auto code = format.next_code(shard, i, offset);
      if (!format.used(shard, i)) {
        skip(piece);
      } else {
        codec.decode(code, 1.0f, false, piece.mean());
        piece.stage = Piece::Stage::kDone;
      }
    }
  }
}

// Throws PayloadError before anything is changed.
bool all_finite(const Shards& shards, std::span<const std::byte> all) {
  bool finite = true;
  for (std::size_t owner = 0; owner < shards.count(); ++owner)
    finite = shards.format(owner).read_header(shards.shard(all, owner), static_cast<int>(owner)) && finite;
  for (std::size_t owner = 0; finite && owner < shards.count(); ++owner)
    shards.format(owner).check_codes(shards.shard(all, owner));
  return finite;
}

}  // namespace

Exchange scatter_reduce(const PieceCodec& codec, Work& work, Context& context) {
  const Shards shards(codec, work, context);
  const std::size_t all_bytes = shards.bytes() * shards.count();
  auto mine = context.scratch().take<std::byte>(all_bytes);
  auto received = context.scratch().take<std::byte>(all_bytes);
  encode_shards(codec, shards, work, context, mine);
  if (work.measured) measure_first_error(work);
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
  if (!context.any_non_finite) decode_means(codec, shards, all);
}

}  // namespace thinwire
