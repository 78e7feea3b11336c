// One message of gradiveq with refresh=every: what it sends of each piece, and what becomes of it.
#pragma once

#include <span>

#include "compressors/gradiveq/followed_basis.h"
#include "compressors/shared/head.h"
#include "compressors/shared/message.h"

namespace thinwire {

// What is summed first: of pieces without components the values, with feedback the head, and of pieces with components Y and S. What
// is summed second: Z. A stage carries Y, S and Z.
class FollowMessage {
 public:
  FollowMessage(Work& work, Context& context, bool has_stage);
  FollowMessage(const FollowMessage&) = delete;
  FollowMessage& operator=(const FollowMessage&) = delete;

  std::span<float> first() const { return first_; }
  std::span<float> second() const { return second_; }

  void project();
  // Of the first sum; false if some worker's values are known not to be finite.
  bool first_arrived();
  // S becomes P, the same on every worker. R itself is not needed: Z = P X - P Y' U.
  void probe();
  // What a stage exchanges: what each worker's own loses is what was sent less, and goes back to X.
  Work stage_first();
  Work stage_second();

  // Once all rounds are over: whether all means are finite and can be stored.
  bool means_fit();
  // Gives uncompressed pieces their mean, and components from it to those that are to have them in the next step.
  void begin_bases();
  // Past the commit point.
  void commit_all();

 private:
  struct Part {
    std::size_t slices = 0;             // N; 0: values travel
    std::size_t matrix = 0;             // of X in matrices_
    std::size_t first = 0, length = 0;  // of values in first_, or of Y and S among coefficients_
    std::size_t second = 0, rest = 0;   // of Z in second_
  };

  void plan();
  void project_piece(std::size_t i, std::size_t thread);
  void probe_piece(std::size_t i, kernels::MatrixRoom room);
  void reconstruct(std::size_t i, const kernels::Matrix& mean, kernels::MatrixRoom room) const;
  bool bound_fits(std::size_t i) const;
  void commit_compressed(const CommitRooms& rooms, std::size_t i, std::size_t thread) const;
  Work stage(std::span<float> sent, std::size_t Part::* begin, std::size_t Part::* length, bool second);

  static std::span<float> numbers(const kernels::Matrix& matrix) { return {matrix.data, matrix.rows * matrix.stride}; }
  bool wants_left() const { return work_.feedback || work_.measured; }
  bool is_compressed(std::size_t i) const { return parts_[i].slices > 0; }
  FollowedBasis& basis(std::size_t i) const { return static_cast<FollowedBasis&>(*work_.pieces[i].memory); }
  std::size_t entries(std::size_t i) const { return basis(i).slices().entries(); }
  std::size_t room_for(std::size_t i) const;
  kernels::MatrixRoom room(std::size_t thread) const { return kernels::MatrixRoom(rooms_.subspan(thread * room_size_, room_size_)); }
  std::span<float> values_of(std::size_t i) const { return first_.subspan(parts_[i].first, parts_[i].length); }

  // X, then the residual, then the mean.
  kernels::Matrix matrix(std::size_t i) const {
    return {matrices_.data() + parts_[i].matrix, parts_[i].slices, entries(i), entries(i)};
  }
  // Of Y and S: d rows, then q.
  kernels::Matrix rows(std::span<float> all, std::size_t i) const {
    return {all.data() + parts_[i].first, parts_[i].length / parts_[i].slices, parts_[i].slices, parts_[i].slices};
  }
  kernels::Matrix components_of(const kernels::Matrix& all, std::size_t i) const {
    return {all.data, basis(i).dims(), all.columns, all.stride};
  }
  kernels::Matrix probes_of(const kernels::Matrix& all, std::size_t i) const {
    return {all.data + basis(i).dims() * all.stride, basis(i).probes(), all.columns, all.stride};
  }
  // Of Z: q rows.
  kernels::Matrix rest(std::span<float> all, std::size_t i) const {
    return {all.data() + parts_[i].second, basis(i).probes(), entries(i), entries(i)};
  }
  kernels::ConstMatrix components(std::size_t i) const { return {basis(i).rows(), basis(i).dims(), entries(i), entries(i)}; }

  Work& work_;
  Context& context_;
  Head head_;
  bool has_stage_;
  std::span<Part> parts_;
  std::span<float> head_numbers_;  // in first_; empty without feedback
  std::span<float> first_, coefficients_, second_, matrices_, lost_;
  std::span<float> own_first_, own_second_;  // this worker's Y, less what a stage lost of it, with P after it, and its Z
  std::span<Piece> staged_;
  // Room for each thread.
  std::span<float> values_;
  std::span<std::byte> rooms_;
  std::size_t longest_ = 0, room_size_ = 0;
};

}  // namespace thinwire
