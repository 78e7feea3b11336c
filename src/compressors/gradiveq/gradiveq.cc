#include "compressors/gradiveq/gradiveq.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "compressors/shared/message.h"
#include "compressors/gradiveq/staged_pieces.h"
#include "core/fingerprint.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

// Chunks are long, so that products are of large matrices.
constexpr std::uint64_t kLongChunk = 4 * kChunkElements;

int owner_of(const Parameter& parameter, int world_size) {
  Fingerprint print;
  print.add(parameter.name);
  return static_cast<int>((print.value() >> 16) % static_cast<std::uint64_t>(world_size));
}

GradiveqCycle& cycle_of(const Piece& piece) { return static_cast<GradiveqCycle&>(*piece.memory); }
GradiveqCycle& cycle_of(const ParameterView& parameter) { return static_cast<GradiveqCycle&>(parameter.memory()); }

void copy(std::span<const float> from, std::span<float> to) { std::copy(from.begin(), from.end(), to.begin()); }

}  // namespace

Gradiveq::Gradiveq(const GradiveqOptions& options, bool flush, std::unique_ptr<const Compressor> next)
    : options_(options), flush_(flush), next_(std::move(next)) {
  refuse_memory(next_.get());
}

std::uint64_t Gradiveq::unit_elements(const Parameter& parameter) const {
  std::uint64_t line = 1;
  for (const Axis axis : axes_for(parameter, options_.axis))
    line = std::lcm(line, static_cast<std::uint64_t>(Slices(parameter, axis, options_.slice).line()));
  return std::max<std::uint64_t>(kLongChunk / line, 1) * line;
}

std::unique_ptr<CompressorMemory> Gradiveq::make_memory(const Parameter& parameter) const {
  return std::make_unique<GradiveqCycle>(parameter, options_, background_);
}

// --- bases

Exchange Gradiveq::prepare(std::span<const ParameterView* const> parameters, Context& context) const {
  // Each parameter's axis and number of components, from its owner.
  const auto headers = context.scratch().take<std::int32_t>(2 * parameters.size());
  std::fill(headers.begin(), headers.end(), 0);
  const auto is_owner = [&](std::size_t i, int rank) { return owner_of(parameters[i]->definition(), context.world_size()) == rank; };
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Basis* const basis = is_owner(i, context.rank()) ? cycle_of(*parameters[i]).found() : nullptr;
    if (!basis) continue;
    headers[2 * i] = static_cast<std::int32_t>(basis->axis);
    headers[2 * i + 1] = static_cast<std::int32_t>(basis->dims);
  }
  Await header_round = context.max(headers);
  co_await header_round;

  std::size_t numbers = 0;
  const auto length_of = [&](std::size_t i) {
    if (headers[2 * i] < 0 || headers[2 * i] >= kAxes || headers[2 * i + 1] < 0)
      throw PayloadError("a basis of gradiveq is of an unknown kind");
    const auto dims = static_cast<std::size_t>(headers[2 * i + 1]);
    if (dims == 0) return std::size_t{0};
    const std::size_t entries = cycle_of(*parameters[i]).slices(static_cast<Axis>(headers[2 * i])).entries();
    if (dims > entries) throw PayloadError("a basis of gradiveq has more components than slices have entries");
    return cycle_of(*parameters[i]).basis_numbers(dims, entries);
  };
  for (std::size_t i = 0; i < parameters.size(); ++i) numbers += length_of(i);
  const auto all = context.scratch().take<float>(numbers);
  for (int root = 0; root < context.world_size(); ++root) {
    std::size_t end = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!is_owner(i, root) || length_of(i) == 0) continue;
      const auto part = all.subspan(end, length_of(i));
      if (root == context.rank()) GradiveqCycle::write_basis(*cycle_of(*parameters[i]).found(), part);
      end += part.size();
    }
    if (end == 0) continue;
    Await round = context.broadcast(std::as_writable_bytes(all.first(end)), root);
    co_await round;
    std::span<const float> rest = all.first(end);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!is_owner(i, root) || length_of(i) == 0) continue;
      cycle_of(*parameters[i]).use(cycle_of(*parameters[i]).read_basis(
          static_cast<Axis>(headers[2 * i]), static_cast<std::size_t>(headers[2 * i + 1]), rest.first(length_of(i))));
      rest = rest.subspan(length_of(i));
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (length_of(i) == 0) cycle_of(*parameters[i]).use(nullptr);
}

// --- messages

// What is summed as floats: of pieces without a basis the values, of others the coefficients, d rows of a column for each
// slice, unless a stage carries them; then with feedback a mark a piece, 1 if this worker used it.
class Gradiveq::Message {
 public:
  Message(const Gradiveq& gradiveq, Work& work, Context& context)
      : gradiveq_(gradiveq), work_(work), context_(context), parts_(context.scratch().take<Part>(work.pieces.size())) {
    std::size_t floats = 0, apart = 0, pieces = 0, room = 0, words = 0, norms = 0;
    bool decodes_own = work.measured;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Piece& piece = work.pieces[i];
      const Basis* const basis = cycle_of(piece).basis(piece.step);
      Part& part = parts_[i] = {basis, 0, piece.gradient.size()};
      if (basis) {
        const std::size_t slices = basis->slices.count(piece.gradient.size());
        part.length = basis->dims * slices;
        room = std::max(room, basis->slices.room_for());
        if (basis->code) {
          part.words_begin = words;
          part.norms_begin = norms;
          words += part.words = basis->code->words(slices);
          norms += part.norms = basis->code->norms(slices);
          decodes_own = decodes_own || work.feedback;
        }
      }
      std::size_t& end = is_apart(part) ? apart : floats;
      part.begin = end;
      end += part.length;
      pieces += is_staged(part) ? staged_pieces(part.length) : 0;
    }
    marks_ = floats;
    sums_ = context.scratch().take<float>(floats + (work.feedback ? parts_.size() : 0));
    apart_ = context.scratch().take<float>(apart);
    words_ = context.scratch().take<std::int32_t>(words);
    norms_ = context.scratch().take<float>(norms);
    staged_pieces_ = context.scratch().take<Piece>(pieces);
    room_size_ = room;
    room_ = context.scratch().take<float>(room * context.threads().threads());
    if (work.measured) errors_ = context.scratch().take<double>(parts_.size());
    longest_ = decodes_own ? std::accumulate(work.pieces.begin(), work.pieces.end(), std::size_t{0},
                                               [](std::size_t a, const Piece& piece) { return std::max(a, piece.gradient.size()); })
                           : 0;
    decoded_ = context.scratch().take<float>(longest_ * context.threads().threads());
  }

  std::span<float> sums() const { return sums_; }
  std::span<float> norms() const { return norms_; }
  std::span<std::int32_t> words() const { return words_; }
  bool has_stage() const { return !staged_pieces_.empty(); }

  void encode() {
    for (const Piece& piece : work_.pieces)
      if (!cycle_of(piece).basis(piece.step) && is_learning(piece)) cycle_of(piece).begin_learning(piece.step, context_.world_size());
    for_each([&](Piece& piece, std::size_t i, std::span<float> room, std::size_t thread) {
      const std::span<float> sent = sent_of(i);
      if (piece.has_residual()) open(piece, work_);
      if (work_.feedback) sums_[marks_ + i] = piece.used ? 1 : 0;
      if (parts_[i].basis) {
        const Basis& basis = *parts_[i].basis;
        project(basis, piece, sent, room);
        if (basis.code) basis.code->measure(coefficients(basis, sent), basis.deviations, context_.world_size(), norms_of(i));
      } else {
        copy(piece.values(), sent);
        if (work_.feedback) keep_back(piece, sent);
      }
      if (work_.measured) errors_[i] = parts_[i].basis && !is_coded(parts_[i]) ? error_of(piece, i, room, thread) : 0;
    });
    const std::span<float> first = sums_.empty() ? norms_ : sums_;
    if (!context_.finite && !first.empty()) first[0] = std::numeric_limits<float>::quiet_NaN();
    add_errors();
  }

  // With the norms that all workers share. What a worker's own levels do not express stays in its residual.
  void round_coefficients() {
    for_each([&](Piece& piece, std::size_t i, std::span<float> room, std::size_t thread) {
      if (!is_coded(parts_[i]) || is_unused(i)) return;
      const Basis& basis = *parts_[i].basis;
      basis.code->encode(coefficients(basis, sent_of(i)), basis.deviations, norms_of(i), context_.world_size(), piece.has_residual(), words_of(i));
      if (!piece.has_residual()) return;
      const auto decoded = decoded_.subspan(thread * longest_, piece.gradient.size());
      reconstruct(basis, sent_of(i), 1, decoded, room);
      for (std::size_t e = 0; e < decoded.size(); ++e) piece.residual[e] -= decoded[e];
      if (work_.measured) errors_[i] = kernels::squared_norm(piece.residual);
    });
    add_errors();
  }

  // What the next stage exchanges: the coefficients, whose mean takes their place.
  Work stage_work() const {
    Work staged;
    std::size_t next = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (!is_staged(parts_[i])) continue;
      const auto pieces = staged_pieces_.subspan(next, staged_pieces(parts_[i].length));
      write_staged(work_.pieces[i], parts_[i].begin, sent_of(i), {}, 0, pieces);
      next += pieces.size();
    }
    staged.pieces = staged_pieces_;
    staged.elements = apart_.size();
    return staged;
  }

  void decode() const {
    const float share = 1.0f / static_cast<float>(context_.world_size());
    for_each([&](Piece& piece, std::size_t i, std::span<float> room, std::size_t) {
      if (is_unused(i)) return skip(piece);
      if (const Basis* const basis = parts_[i].basis) {
        if (is_coded(parts_[i]))
          basis->code->decode(words_of(i), basis->deviations, norms_of(i), context_.world_size(), coefficients(*basis, sent_of(i)));
        reconstruct(*basis, sent_of(i), is_staged(parts_[i]) ? 1 : share, piece.mean(), room);
        if (!is_coded(parts_[i])) for (std::size_t e = 0; e < piece.residual.size(); ++e) piece.residual[e] -= piece.mean()[e];
      } else {
        copy(sent_of(i), piece.mean());
        kernels::multiply(piece.mean(), share);
        if (is_learning(piece)) cycle_of(piece).learn(piece.first, piece.mean());
      }
      piece.stage = Piece::Stage::kDone;
    });
  }

 private:
  struct Part {
    const Basis* basis = nullptr;
    std::size_t begin = 0;
    std::size_t length = 0;
    std::size_t words_begin = 0, words = 0, norms_begin = 0, norms = 0;  // of a code
  };

  bool is_staged(const Part& part) const { return part.basis && gradiveq_.next_; }
  bool is_coded(const Part& part) const { return part.basis && part.basis->code; }
  bool is_apart(const Part& part) const { return is_staged(part) || is_coded(part); }
  // Whether no worker used it; known once sums are.
  bool is_unused(std::size_t i) const { return work_.feedback && sums_[marks_ + i] == 0; }
  std::span<float> sent_of(std::size_t i) const {
    return (is_apart(parts_[i]) ? apart_ : sums_).subspan(parts_[i].begin, parts_[i].length);
  }
  std::span<float> norms_of(std::size_t i) const { return norms_.subspan(parts_[i].norms_begin, parts_[i].norms); }
  std::span<std::int32_t> words_of(std::size_t i) const { return words_.subspan(parts_[i].words_begin, parts_[i].words); }
  // Learning is for the parameter's owner.
  bool is_learning(const Piece& piece) const {
    return gradiveq_.options_.schedule.learns(piece.step) && owner_of(*piece.definition, context_.world_size()) == context_.rank();
  }

  template <class Body>
  void for_each(const Body& body) const {
    context_.threads().for_each(work_.pieces.size(), work_.elements, [&](std::size_t i, std::size_t thread) {
      body(work_.pieces[i], i, room_.subspan(thread * room_size_, room_size_), thread);
    });
  }

  static kernels::Matrix coefficients(const Basis& basis, std::span<float> sent) {
    const std::size_t columns = sent.size() / basis.dims;
    return {sent.data(), basis.dims, columns, columns};
  }

  static void project(const Basis& basis, const Piece& piece, std::span<float> sent, std::span<float> room) {
    const kernels::Matrix y = coefficients(basis, sent);
    for (std::size_t c = 0; c < y.rows; ++c) std::fill_n(y.data + c * y.stride, y.columns, -basis.offsets[c]);
    basis.slices.project(piece.values(), basis.columns, y, room);
  }

  static void reconstruct(const Basis& basis, std::span<float> sent, float share, std::span<float> values, std::span<float> room) {
    const kernels::Matrix y = coefficients(basis, sent);
    basis.slices.reconstruct(share, basis.rows, y, basis.mean, values, room);
  }

  // Of what an uncompressed step could send, feedback=flush holds some of the old residual, which is in the gradient's
  // place, back for the learning steps to come.
  void keep_back(Piece& piece, std::span<float> sent) const {
    std::fill(piece.residual.begin(), piece.residual.end(), 0.0f);
    const Schedule& schedule = gradiveq_.options_.schedule;
    if (!gradiveq_.flush_ || !schedule.learns(piece.step)) return;
    const float share = 1.0f / static_cast<float>(schedule.learn - schedule.position(piece.step));
    for (std::size_t e = 0; e < sent.size(); ++e) {
      piece.residual[e] = (1 - share) * piece.gradient[e];
      sent[e] -= piece.residual[e];
    }
  }

  void add_errors() {
    if (work_.measured) work_.first_error = std::accumulate(errors_.begin(), errors_.end(), 0.0);
  }

  // What this worker's own projection loses.
  double error_of(const Piece& piece, std::size_t i, std::span<float> room, std::size_t thread) const {
    const auto decoded = decoded_.subspan(thread * longest_, piece.gradient.size());
    reconstruct(*parts_[i].basis, sent_of(i), 1, decoded, room);
    for (std::size_t e = 0; e < decoded.size(); ++e) decoded[e] -= piece.residual[e];
    return kernels::squared_norm(decoded);
  }

  const Gradiveq& gradiveq_;
  Work& work_;
  Context& context_;
  std::span<Part> parts_;
  std::size_t marks_ = 0;  // where they begin in sums_
  std::span<float> sums_;
  std::span<float> apart_;  // coefficients that are not summed as floats
  std::span<std::int32_t> words_;
  std::span<float> norms_;
  std::span<Piece> staged_pieces_;
  std::span<float> room_;
  std::size_t room_size_ = 0;
  std::span<double> errors_;
  std::span<float> decoded_;  // room for a piece in each thread, to measure
  std::size_t longest_ = 0;
};

Exchange Gradiveq::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  Message message(*this, work, context);
  message.encode();
  if (!message.sums().empty()) {
    Await round = context.sum(message.sums());
    co_await round;
    if (flagged(message.sums(), context)) co_return;
  }
  if (!message.norms().empty()) {
    Await norms = context.max(message.norms());
    co_await norms;
    if (flagged(message.norms(), context)) co_return;
    message.round_coefficients();
    Await levels = context.sum(message.words());
    co_await levels;
  }
  if (message.has_stage()) {
    Work staged = message.stage_work();
    Exchange coefficients = next_->exchange(staged, context);
    co_await coefficients;
    if (context.any_non_finite) co_return;
  }
  context.enter(Phase::kDecode);
  message.decode();
}

}  // namespace thinwire
