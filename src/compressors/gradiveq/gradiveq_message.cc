#include "compressors/gradiveq/gradiveq_message.h"

#include <algorithm>
#include <cmath>

#include "compressors/gradiveq/staged_pieces.h"
#include "compressors/shared/averaging.h"
#include "core/fingerprint.h"
#include "kernels/rows.h"

namespace thinwire {
namespace {

GradiveqCycle& cycle_of(const Piece& piece) { return static_cast<GradiveqCycle&>(*piece.memory); }

kernels::Matrix matrix_of(const Basis& basis, std::span<float> coefficients) {
  const std::size_t columns = coefficients.size() / basis.dims;
  return {coefficients.data(), basis.dims, columns, columns};
}

}  // namespace

int owner_of(const Parameter& parameter, int world_size) {
  Fingerprint print;
  print.add(parameter.name);
  return static_cast<int>((print.value() >> 16) % static_cast<std::uint64_t>(world_size));
}

GradiveqMessage::GradiveqMessage(const CycleTerms& terms, Work& work, Context& context)
    : terms_(terms), work_(work), context_(context), head_(work, context.scratch()),
      parts_(context.scratch().take<Part>(work.pieces.size())) {
  plan();
}

void GradiveqMessage::plan() {
  Scratch& scratch = context_.scratch();
  std::size_t floats = 0, apart = 0, pieces = 0, words = 0, norms = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Piece& piece = work_.pieces[i];
    const std::size_t elements = piece.elements();
    const Basis* const basis = cycle_of(piece).basis(piece.step, context_.world_size());
    Part& part = parts_[i] = {basis, terms_.staged && !cycle_of(piece).is_small() && (basis || work_.feedback), 0, elements};
    if (basis) {
      const std::size_t slices = basis->slices.count(elements);
      part.length = basis->dims * slices;
      longest_ = std::max(longest_, elements);
      most_coefficients_ = std::max(most_coefficients_, part.length);
      slices_size_ = std::max(slices_size_, basis->slices.room_for());
      if (basis->code) {
        part.words_begin = words;
        part.norms_begin = norms;
        words += part.words = basis->code->words(slices);
        norms += part.norms = basis->code->norms(slices);
      }
    }
    std::size_t& end = is_apart(part) ? apart : floats;
    part.begin = end;
    end += part.length;
    part.staged_begin = pieces;
    pieces += part.staged = part.is_staged ? staged_pieces(part.length) : 0;
  }
  const std::size_t numbers = work_.feedback ? head_.numbers() : 0;
  const bool in_norms = floats == 0 && norms > 0;
  sums_ = scratch.take<float>(floats + (in_norms ? 0 : numbers));
  apart_ = scratch.take<float>(apart);
  words_ = scratch.take<std::int32_t>(words);
  norms_ = scratch.take<float>(norms + (in_norms ? numbers : 0));
  head_numbers_ = in_norms ? norms_.subspan(norms) : sums_.subspan(floats);
  staged_pieces_ = scratch.take<Piece>(pieces);
  own_ = scratch.take<float>(work_.feedback && pieces > 0 ? apart : 0);
  lost_ = scratch.take<float>(own_.size());
  const std::size_t threads = context_.threads().threads();
  values_ = scratch.take<float>(longest_ * threads);
  slices_ = scratch.take<float>(slices_size_ * threads);
  if (work_.measured || std::ranges::any_of(parts_, [this](const Part& part) { return is_by_channel(part); })) take_room_for_coefficients();
}

void GradiveqMessage::take_room_for_coefficients() {
  if (coefficients_.empty()) coefficients_ = context_.scratch().take<float>(most_coefficients_ * context_.threads().threads());
}

// --- encoding

void GradiveqMessage::begin_learning() {
  for (const Piece& piece : work_.pieces)
    if (terms_.schedule.learns(piece.step))
      cycle_of(piece).begin_learning(piece.step, owner_of(*piece.definition, context_.world_size()) == context_.rank(), context_.world_size());
}

// What is to be sent of a piece that is projected: where it lies, or a copy.
std::span<const float> GradiveqMessage::read(std::size_t i, std::size_t thread) {
  const Piece& piece = work_.pieces[i];
  if (const auto in_place = values_in_place(piece, work_); !in_place.empty()) return in_place;
  const auto values = values_room(i, thread);
  head_.note(i, read_values(piece, work_, values));
  return values;
}

void GradiveqMessage::encode() {
  begin_learning();
  for_each([&](std::size_t i, std::size_t thread) {
    const Piece& piece = work_.pieces[i];
    const std::span<float> sent = sent_of(i);
    if (const Basis* const basis = parts_[i].basis) {
      project(*basis, read(i, thread), sent, thread);
      if (is_by_channel(parts_[i])) order_by_channel(i, thread);
      if (basis->code) basis->code->measure(matrix_of(*basis, sent), basis->deviations, context_.world_size(), norms_of(i));
      return keep_own(parts_[i]);
    }
    const kernels::Opened opened = read_values(piece, work_, sent);
    head_.note(i, opened);
    if (work_.measured) work_.report.energies[i] = static_cast<double>(opened.sum.sum_squares);
    if (const float kept = kept_back(piece); kept > 0)
      for (std::size_t e = 0; e < sent.size(); ++e) sent[e] -= kept * piece.residual[e];
    keep_own(parts_[i]);
  });
  if (!head_numbers_.empty()) head_.write(head_numbers_, 1.0f);
}

void GradiveqMessage::order_by_channel(std::size_t i, std::size_t thread) const {
  const Slices& slices = parts_[i].basis->slices;
  const auto rows = coefficients_room(i, thread);
  std::ranges::copy(sent_of(i), rows.begin());
  rows_to_groups(rows, parts_[i].basis->dims, slices.count(slices.channel()), sent_of(i));
}

// Of a piece with a basis: where its coefficients have a row for each component.
std::span<float> GradiveqMessage::as_rows(std::size_t i, std::span<float> coefficients, std::size_t thread) const {
  if (!is_by_channel(parts_[i])) return coefficients;
  const Slices& slices = parts_[i].basis->slices;
  const auto rows = coefficients_room(i, thread);
  groups_to_rows(coefficients, parts_[i].basis->dims, slices.count(slices.channel()), rows);
  return rows;
}

// Before the stage's mean takes its place.
void GradiveqMessage::keep_own(const Part& part) const {
  if (own_.empty() || !part.is_staged) return;
  std::ranges::copy(apart_.subspan(part.begin, part.length), own_of(part).begin());
  std::ranges::fill(lost_of(part), 0.0f);
}

void GradiveqMessage::project(const Basis& basis, std::span<const float> values, std::span<float> sent, std::size_t thread) const {
  const kernels::Matrix y = matrix_of(basis, sent);
  for (std::size_t c = 0; c < y.rows; ++c) std::fill_n(y.data + c * y.stride, y.columns, -basis.offsets[c]);
  basis.slices.project(values, basis.columns, y, slices_room(thread));
}

void GradiveqMessage::reconstruct(const Basis& basis, std::span<float> sent, float share, std::span<float> values,
                                  std::size_t thread) const {
  basis.slices.reconstruct(share, basis.rows, matrix_of(basis, sent), basis.mean, values, slices_room(thread));
}

// The part of the old residual that feedback=flush holds back in this step, for the learning steps to come.
float GradiveqMessage::kept_back(const Piece& piece) const {
  if (!terms_.flush || !piece.has_residual() || !terms_.schedule.learns(piece.step)) return 0;
  return 1 - 1.0f / static_cast<float>(terms_.schedule.learn - terms_.schedule.position(piece.step));
}

bool GradiveqMessage::read_head(std::span<const float> message) {
  if (head_numbers_.empty() || &message.back() != &head_numbers_.back()) return true;
  head_.read<float>(head_numbers_);
  return head_.finite();
}

bool GradiveqMessage::norms_arrived() {
  return read_head(norms_) && std::ranges::all_of(norms_, [](float norm) { return norm >= 0 && std::isfinite(norm); });
}

void GradiveqMessage::round_coefficients() {
  for_each([&](std::size_t i, std::size_t) {
    if (!is_coded(parts_[i])) return;
    const Basis& basis = *parts_[i].basis;
    if (head_.is_skipped(i))
      std::ranges::fill(words_of(i), 0);
    else
      basis.code->encode(matrix_of(basis, sent_of(i)), basis.deviations, norms_of(i), context_.world_size(), wants_own_error(), words_of(i));
  });
}

Work GradiveqMessage::stage_work() {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (!part.is_staged) continue;
    const Piece& piece = work_.pieces[i];
    const std::span<float> sent = sent_of(i);
    if (head_.is_skipped(i)) std::ranges::fill(sent, 0.0f);
    write_staged({.piece = piece, .begin = part.begin, .coefficients = sent, .first = cycle_of(piece).first_coefficient(piece),
                  .memory = cycle_of(piece).stage_memory(), .lost = lost_of(part)},
                 context_.world_size(), staged_pieces_.subspan(part.staged_begin, part.staged));
  }
  Work staged = staged_work(staged_pieces_, apart_.size(), work_.feedback);
  if (work_.measured && !work_.feedback) {  // else residuals tell
    staged.measured = true;
    staged.report.energies = context_.scratch().take<double>(staged_pieces_.size());
    staged.report.errors = context_.scratch().take<double>(staged_pieces_.size());
    std::ranges::fill(staged.report.errors, 0.0);
  }
  return staged;
}

// --- decoding

void GradiveqMessage::decode_words(std::size_t i, std::span<float> coefficients) const {
  const Basis& basis = *parts_[i].basis;
  basis.code->decode(words_of(i), basis.deviations, norms_of(i), context_.world_size(), matrix_of(basis, coefficients));
}

// By what a mean can be at most, which is more than it is.
bool GradiveqMessage::bound_fits(std::size_t i) const {
  constexpr double kRounding = 1.001;
  const Part& part = parts_[i];
  if (is_coded(part)) {
    const auto norms = norms_of(i);
    const float norm = norms.empty() ? 0 : *std::ranges::max_element(norms);
    return fits(work_, kRounding * (static_cast<double>(norm) * part.basis->reach_of_levels / context_.world_size() + part.basis->largest_mean));
  }
  const kernels::Scan scan = kernels::scan(sent_of(i));
  const double largest = static_cast<double>(scan.largest) * static_cast<double>(share(part));
  if (!scan.finite || !part.basis) return scan.finite && fits(work_, largest);
  return fits(work_, kRounding * (largest * part.basis->reach + part.basis->largest_mean));
}

bool GradiveqMessage::mean_fits(std::size_t i, std::size_t thread) const {
  const Part& part = parts_[i];
  if (!part.basis) return false;
  std::span<float> coefficients = as_rows(i, sent_of(i), thread);
  if (is_coded(part)) {
    coefficients = coefficients_room(i, thread);
    decode_words(i, coefficients);
  }
  const auto mean = values_room(i, thread);
  reconstruct(*part.basis, coefficients, share(part), mean, thread);
  return holds_mean(work_, mean);
}

bool GradiveqMessage::means_fit() {
  const auto all = [&](const auto& holds) {
    return all_pieces(context_, work_, [&](std::size_t i, std::size_t thread) { return head_.is_skipped(i) || holds(i, thread); });
  };
  if (all([&](std::size_t i, std::size_t) { return bound_fits(i); })) return true;
  take_room_for_coefficients();
  return all([&](std::size_t i, std::size_t thread) { return bound_fits(i) || mean_fits(i, thread); });
}

void GradiveqMessage::commit_all() {
  const CommitRooms rooms(work_, context_);
  for_each([&](std::size_t i, std::size_t thread) {
    if (head_.is_skipped(i)) return commit_unused(i);
    if (parts_[i].basis) return commit_projected(rooms, i, thread);
    commit_values(rooms, i, thread);
  });
}

void GradiveqMessage::commit_unused(std::size_t i) const {
  const Piece& piece = work_.pieces[i];
  skip(piece);
  if (work_.measured) work_.report.energies[i] = 0;
  if (parts_[i].basis) return;
  std::ranges::fill(sent_of(i), 0.0f);  // a stage left a mean of zeros
  cycle_of(piece).learn(piece.first, sent_of(i));
}

void GradiveqMessage::commit_values(const CommitRooms& rooms, std::size_t i, std::size_t thread) const {
  const Piece& piece = work_.pieces[i];
  const std::span<float> mean = sent_of(i);
  kernels::multiply(mean, share(parts_[i]));
  cycle_of(piece).learn(piece.first, mean);
  if (parts_[i].is_staged) {
    const std::span<float> left = rooms.read(work_, i, thread).left;
    kernels::add_scaled(left, own_coefficients(i), -1.0f);
    return commit(work_, i, {left, mean});
  }
  const float kept = kept_back(piece);
  if (!(kept > 0)) return commit_lossless(work_, i, mean);
  for (std::size_t e = 0; e < mean.size(); ++e) piece.next_residual[e] = kept * piece.residual[e];
  commit(work_, i, {piece.next_residual, mean});
  if (work_.measured) work_.report.errors[i] = 0;
}

// What this worker's own projection loses.
double GradiveqMessage::own_error(std::size_t i, std::span<const float> values, std::size_t thread) const {
  const Basis& basis = *parts_[i].basis;
  const auto coefficients = coefficients_room(i, thread), decoded = values_room(i, thread);
  project(basis, values, coefficients, thread);
  reconstruct(basis, coefficients, 1, decoded, thread);
  kernels::add_scaled(decoded, values, -1.0f);
  return kernels::squared_norm(decoded);
}

// This worker's own, as its levels or the stage's code say them.
std::span<float> GradiveqMessage::own_coefficients(std::size_t i) const {
  const Part& part = parts_[i];
  if (is_coded(part)) return sent_of(i);
  kernels::add_scaled(own_of(part), lost_of(part), -1.0f);
  return own_of(part);
}

// What the stage loses of it lies in the space of the components, and adds up with what they lose.
double GradiveqMessage::staged_error(std::size_t i) const {
  const Part& part = parts_[i];
  double error = 0;
  for (std::size_t s = 0; s < part.staged; ++s) error += staged_report_.errors[part.staged_begin + s];
  return error;
}

void GradiveqMessage::commit_projected(const CommitRooms& rooms, std::size_t i, std::size_t thread) const {
  const Part& part = parts_[i];
  const CommitRoom room = rooms.read(work_, i, thread);
  const bool by_own = has_own(part);
  double error = 0;
  if (by_own) {
    if (!room.left.empty()) {
      const auto own = values_room(i, thread);
      reconstruct(*part.basis, as_rows(i, own_coefficients(i), thread), 1, own, thread);
      kernels::add_scaled(room.left, own, -1.0f);
    }
  } else if (work_.measured) {
    error = own_error(i, room.left, thread) + staged_error(i);
  }
  if (is_coded(part)) decode_words(i, sent_of(i));
  reconstruct(*part.basis, as_rows(i, sent_of(i), thread), share(part), room.mean, thread);
  if (!by_own && work_.feedback) kernels::add_scaled(room.left, room.mean, -1.0f);
  commit(work_, i, room);
  if (!by_own && work_.measured) work_.report.errors[i] = error;
}

}  // namespace thinwire
