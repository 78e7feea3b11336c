#include "compressors/shared/gather_and_average.h"

#include "compressors/shared/coded_message.h"
#include "compressors/shared/message.h"

namespace thinwire {
namespace {

// Every worker's message, one behind the other.
class Gathered {
 public:
  Gathered(const PieceCodec& codec, const CodedMessage& format, std::span<Piece* const> pieces, Context& context,
           std::span<const std::byte> all)
      : codec_(codec), format_(format), pieces_(pieces), context_(context), world_size_(context.world_size()), all_(all) {}

  // Reads every worker's header; throws PayloadError before anything is changed.
  bool all_finite() const {
    bool finite = true;
    for (int rank = 0; rank < world_size_; ++rank) finite = format_.read_header(message(rank), rank) && finite;
    return finite;
  }

  void check() const {
    for (int rank = 0; rank < world_size_; ++rank) format_.check_codes(message(rank));
  }

  void average() const {
    const std::uint64_t decoded = format_.elements() * static_cast<std::uint64_t>(world_size_);
    context_.threads().for_each(pieces_.size(), decoded, [&](std::size_t i, std::size_t) { average_piece(*pieces_[i], i); });
  }

 private:
  std::span<const std::byte> message(int rank) const {
    return all_.subspan(static_cast<std::size_t>(rank) * format_.bytes(), format_.bytes());
  }

  bool used_by_any(std::size_t piece) const {
    for (int rank = 0; rank < world_size_; ++rank)
      if (format_.used(message(rank), piece)) return true;
    return false;
  }

  void average_piece(Piece& piece, std::size_t index) const {
    if (piece.has_residual() && !used_by_any(index)) return skip(piece);
    const float weight = 1.0f / static_cast<float>(world_size_);
    for (int rank = 0; rank < world_size_; ++rank)
      codec_.decode(format_.code(message(rank), index), piece, weight, rank > 0, piece.mean());
    piece.stage = Piece::Stage::kDone;
  }

  const PieceCodec& codec_;
  const CodedMessage& format_;
  std::span<Piece* const> pieces_;
  Context& context_;
  int world_size_;
  std::span<const std::byte> all_;
};

}  // namespace

Exchange gather_and_average(const PieceCodec& codec, Work& work, Context& context) {
  auto pieces = context.scratch().take<Piece*>(work.pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i] = &work.pieces[i];
  const CodedMessage format(codec, pieces, context.scratch());
  auto mine = context.scratch().take<std::byte>(format.bytes());
  auto all = context.scratch().take<std::byte>(format.bytes() * static_cast<std::size_t>(context.world_size()));
  context.finite = context.finite && open_and_encode(codec, pieces, work, context,
                                                     [&](std::size_t i) { return format.code(mine, i); });
  format.complete(mine, context.finite);
  Await round = context.gather(mine, all);
  co_await round;

  context.enter(Phase::kDecode);
  const Gathered gathered(codec, format, pieces, context, all);
  context.any_non_finite = !gathered.all_finite();
  if (context.any_non_finite) co_return;
  gathered.check();
  gathered.average();
}

}  // namespace thinwire
