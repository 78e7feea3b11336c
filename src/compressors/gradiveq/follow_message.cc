#include "compressors/gradiveq/follow_message.h"

#include <algorithm>
#include <cmath>

#include "compressors/gradiveq/staged_pieces.h"
#include "compressors/shared/averaging.h"
#include "kernels/rows.h"

namespace thinwire {
namespace {

// c <- alpha a b, with room for b.
void set_product(float alpha, const kernels::ConstMatrix& a, const kernels::ConstMatrix& b, const kernels::Matrix& c, kernels::MatrixRoom room) {
  kernels::set_product(alpha, a, kernels::PackedMatrix(b, room), {}, c);
}

}  // namespace

FollowMessage::FollowMessage(Work& work, Context& context, bool has_stage)
    : work_(work), context_(context), head_(work, context.scratch()), has_stage_(has_stage),
      parts_(context.scratch().take<Part>(work.pieces.size())) {
  plan();
}

void FollowMessage::plan() {
  Scratch& scratch = context_.scratch();
  std::size_t values = 0, matrices = 0, coefficients = 0, rests = 0, pieces = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::size_t elements = work_.pieces[i].elements();
    Part& part = parts_[i] = {};
    if (!basis(i).rows()) {
      part.first = values;
      part.length = elements;
      values += part.length;
      continue;
    }
    part.slices = basis(i).slices().count(elements);
    part.matrix = matrices;
    part.first = coefficients;
    part.length = (basis(i).dims() + basis(i).probes()) * part.slices;
    part.second = rests;
    part.rest = basis(i).probes() * entries(i);
    matrices += part.slices * entries(i);
    coefficients += part.length;
    rests += part.rest;
    pieces += std::max(staged_pieces(part.length), staged_pieces(part.rest));
    longest_ = std::max(longest_, elements);
    room_size_ = std::max(room_size_, room_for(i));
  }
  const std::size_t apart = values + (work_.feedback ? head_.numbers() : 0);
  const std::span<float> all = scratch.take<float>(apart + coefficients);
  head_numbers_ = all.subspan(values, apart - values);
  coefficients_ = all.subspan(apart);
  first_ = has_stage_ ? all.first(apart) : all;
  second_ = scratch.take<float>(rests);
  matrices_ = scratch.take<float>(matrices);
  own_first_ = scratch.take<float>(coefficients);
  own_second_ = scratch.take<float>(wants_left() ? rests : 0);
  if (has_stage_) {
    staged_ = scratch.take<Piece>(pieces);
    lost_ = scratch.take<float>(wants_left() ? std::max(coefficients, rests) : 0);
  }
  values_ = scratch.take<float>(longest_ * context_.threads().threads());
  rooms_ = scratch.take<std::byte>(room_size_ * context_.threads().threads());
}

// For whatever is done with a piece.
std::size_t FollowMessage::room_for(std::size_t i) const {
  const std::size_t k = entries(i), d = basis(i).dims(), q = basis(i).probes(), slices = parts_[i].slices;
  using Packed = kernels::PackedMatrix;
  const std::size_t probing = kernels::MatrixRoom::bytes_for<float>(q * d) +
                              std::max({Packed::room_for(slices, k), Packed::room_for(slices, d), Packed::room_for(d, k)});
  return std::max({Packed::room_for(k, d + q), Packed::room_for(d + q, k), orthonormalize_room(q, 0, slices), probing,
                   basis(i).follow_room(slices)});
}

// --- encoding

void FollowMessage::project() {
  for_each_piece(work_, context_, [&](const Piece& piece, std::size_t i, std::size_t thread) {
    if (is_compressed(i)) return project_piece(i, thread);
    const kernels::Opened opened = read_values(piece, work_, values_of(i));
    head_.note(i, opened);
    if (work_.measured) work_.report.energies[i] = static_cast<double>(opened.sum.sum_squares);
  });
  if (!head_numbers_.empty()) head_.write(head_numbers_, 1.0f);
}

void FollowMessage::project_piece(std::size_t i, std::size_t thread) {
  const Piece& piece = work_.pieces[i];
  std::span<const float> values = values_in_place(piece, work_);
  if (values.empty()) {
    const auto copy = values_.subspan(thread * longest_, piece.elements());
    head_.note(i, read_values(piece, work_, copy));
    values = copy;
  }
  const kernels::Matrix x = matrix(i), all = rows(coefficients_, i);
  basis(i).slices().gather(values, 0, x.rows, x.data);
  const kernels::ConstMatrix directions{basis(i).rows(), all.rows, x.columns, x.columns};
  std::ranges::fill(numbers(all), 0.0f);
  kernels::MatrixRoom room = this->room(thread);
  kernels::add_product(1, x, kernels::PackedMatrix(directions.transpose(), room), all.transpose());
  std::ranges::copy(numbers(components_of(all, i)), rows(own_first_, i).data);
}

bool FollowMessage::first_arrived() {
  if (head_numbers_.empty()) return true;
  head_.read<float>(head_numbers_);
  return head_.finite();
}

void FollowMessage::probe() {
  for_each_piece(work_, context_, [&](const Piece&, std::size_t i, std::size_t thread) {
    if (!is_compressed(i)) return;
    if (!head_.is_skipped(i)) return probe_piece(i, room(thread));
    std::ranges::fill(numbers(rest(second_, i)), 0.0f);
  });
}

void FollowMessage::probe_piece(std::size_t i, kernels::MatrixRoom room) {
  const kernels::Matrix all = rows(coefficients_, i), p = probes_of(all, i), own = rows(own_first_, i), y = components_of(own, i);
  const kernels::Matrix z = rest(second_, i);
  orthonormalize(p, 0, room);
  std::ranges::copy(numbers(p), probes_of(own, i).data);
  const auto put_back_lost = [&] {
    if (!lost_.empty()) kernels::add_scaled(numbers(y), numbers(components_of(rows(lost_, i), i)), -1.0f);
  };
  if (work_.feedback) put_back_lost();
  const kernels::Matrix share{room.take<float>(p.rows * y.rows).data(), p.rows, y.rows, y.rows};
  set_product(1, p, matrix(i), z, room);
  set_product(1, p, kernels::ConstMatrix(y).transpose(), share, room);
  kernels::add_product(-1, share, kernels::PackedMatrix(components(i), room), z);
  if (!work_.feedback) put_back_lost();  // only to be measured: it must not change what is sent
  if (!own_second_.empty()) std::ranges::copy(numbers(z), rest(own_second_, i).data);
}

Work FollowMessage::stage_first() {
  for (std::size_t i = 0; i < parts_.size(); ++i)
    if (is_compressed(i) && head_.is_skipped(i)) std::ranges::fill(numbers(rows(coefficients_, i)), 0.0f);
  return stage(coefficients_, &Part::first, &Part::length, false);
}

Work FollowMessage::stage_second() { return stage(second_, &Part::second, &Part::rest, true); }

Work FollowMessage::stage(std::span<float> sent, std::size_t Part::* begin, std::size_t Part::* length, bool second) {
  std::ranges::fill(lost_, 0.0f);
  std::size_t pieces = 0, elements = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (!is_compressed(i)) continue;
    const std::size_t count = staged_pieces(part.*length);
    write_staged({.piece = work_.pieces[i], .begin = part.*begin, .coefficients = sent.subspan(part.*begin, part.*length),
                  .lost = lost_.empty() ? lost_ : lost_.subspan(part.*begin, part.*length), .drawn = second ? part.length : 0},
                 context_.world_size(), staged_.subspan(pieces, count));
    pieces += count;
    elements += part.*length;
  }
  return staged_work(staged_.first(pieces), elements, !lost_.empty());
}

// --- decoding

// The mean of a piece's slices, in their matrix.
void FollowMessage::reconstruct(std::size_t i, const kernels::Matrix& mean, kernels::MatrixRoom room) const {
  const kernels::ConstMatrix all = rows(coefficients_, i);
  const float share = has_stage_ ? 1 : 1.0f / static_cast<float>(context_.world_size());  // a stage leaves means
  kernels::set_product(share, all.transpose(), kernels::PackedMatrix(components(i), room, rest(second_, i)), {}, mean);
}

// By what a mean can be at most, which is more than it is.
bool FollowMessage::bound_fits(std::size_t i) const {
  constexpr double kRounding = 1.001;
  const double share = has_stage_ && is_compressed(i) ? 1.0 : 1.0 / context_.world_size();
  if (!is_compressed(i)) {
    const kernels::Scan scan = kernels::scan(values_of(i));
    return scan.finite && fits(work_, static_cast<double>(scan.largest) * share);
  }
  const kernels::Scan y = kernels::scan(numbers(components_of(rows(coefficients_, i), i))), z = kernels::scan(numbers(rest(second_, i)));
  if (!y.finite || !z.finite) return false;
  // P's rows are orthonormal.
  const double of_probes = std::sqrt(static_cast<double>(basis(i).probes())) * static_cast<double>(z.largest);
  return fits(work_, kRounding * share * (static_cast<double>(y.largest) * basis(i).reach() + of_probes));
}

bool FollowMessage::means_fit() {
  const auto all = [&](const auto& holds) {
    return all_pieces(context_, work_, [&](std::size_t i, std::size_t thread) { return head_.is_skipped(i) || holds(i, thread); });
  };
  if (all([&](std::size_t i, std::size_t) { return bound_fits(i); })) return true;
  std::size_t longest = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) longest = std::max(longest, parts_[i].slices * (is_compressed(i) ? entries(i) : 0));
  const auto means = context_.scratch().take<float>(longest * context_.threads().threads());
  return all([&](std::size_t i, std::size_t thread) {
    if (bound_fits(i)) return true;
    if (!is_compressed(i)) return false;
    const kernels::Matrix mean{means.data() + thread * longest, parts_[i].slices, entries(i), entries(i)};
    reconstruct(i, mean, room(thread));
    return holds_mean(work_, numbers(mean));
  });
}

void FollowMessage::begin_bases() {
  for_each_piece(work_, context_, [&](const Piece&, std::size_t i, std::size_t) {
    if (is_compressed(i) || head_.is_skipped(i)) return;
    kernels::multiply(values_of(i), 1.0f / static_cast<float>(context_.world_size()));
    basis(i).begin(values_of(i));
  });
}

void FollowMessage::commit_all() {
  const CommitRooms rooms(work_, context_);
  for_each_piece(work_, context_, [&](const Piece& piece, std::size_t i, std::size_t thread) {
    if (head_.is_skipped(i)) {
      skip(piece);
      if (work_.measured) work_.report.energies[i] = 0;
    } else if (is_compressed(i)) {
      commit_compressed(rooms, i, thread);
    } else {
      commit_lossless(work_, i, values_of(i));
    }
  });
}

void FollowMessage::commit_compressed(const CommitRooms& rooms, std::size_t i, std::size_t thread) const {
  const Slices& slices = basis(i).slices();
  const kernels::Matrix x = matrix(i), all = rows(coefficients_, i), z = rest(second_, i);
  const CommitRoom committed = rooms.read(work_, i, thread);
  if (!committed.left.empty()) {
    const kernels::ConstMatrix own = rows(own_first_, i);
    const kernels::Matrix own_z = rest(own_second_, i);
    if (!lost_.empty()) kernels::add_scaled(numbers(own_z), numbers(rest(lost_, i)), -1.0f);
    kernels::MatrixRoom room = this->room(thread);
    kernels::add_product(-1, own.transpose(), kernels::PackedMatrix(components(i), room, own_z), x);
    slices.scatter(x.data, 0, x.rows, committed.left);
  }
  reconstruct(i, x, room(thread));
  slices.scatter(x.data, 0, x.rows, committed.mean);
  basis(i).follow(all, z, room(thread));
  commit(work_, i, committed);
}

}  // namespace thinwire
