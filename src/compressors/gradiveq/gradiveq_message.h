// One message of gradiveq's cycle: what it sends of each piece, and what becomes of it.
#pragma once

#include <cstdint>
#include <span>

#include "compressors/gradiveq/gradiveq_cycle.h"
#include "compressors/shared/compressor.h"
#include "compressors/shared/head.h"
#include "compressors/shared/message.h"

namespace thinwire {

struct CycleTerms {
  const Schedule& schedule;
  bool flush = false;   // residuals go out over the learning steps
  bool staged = false;  // a further stage carries the coefficients, and with feedback values without a basis
};

// The worker that learns the parameter's components, of which every worker gets them.
int owner_of(const Parameter& parameter, int world_size);

// What is summed as floats: of pieces without a basis the values, of others the coefficients, d rows of a column for each
// slice, unless a stage or a code carries them. A stage may have them channel by channel, within each the components' rows. With feedback a stage
// carries values, too: what it loses of them is not lost. With feedback the head follows, or, where there are no such floats, the norms.
class GradiveqMessage {
 public:
  GradiveqMessage(const CycleTerms& terms, Work& work, Context& context);
  GradiveqMessage(const GradiveqMessage&) = delete;
  GradiveqMessage& operator=(const GradiveqMessage&) = delete;

  // Rounds, of which empty ones are left out: a sum of sums(), a max of norms(), a sum of words() once coefficients are rounded, and
  // the exchange of stage_work().
  std::span<float> sums() const { return sums_; }
  std::span<float> norms() const { return norms_; }
  std::span<std::int32_t> words() const { return words_; }
  bool has_stage() const { return !staged_pieces_.empty(); }

  void encode();
  // Of what a round has brought; false if some worker's values are known not to be finite.
  bool sums_arrived() { return read_head(sums_); }
  bool norms_arrived();
  // With the norms that all workers share.
  void round_coefficients();
  // What the next stage exchanges: the coefficients, whose mean takes their place.
  Work stage_work();
  void stage_arrived(const Work& staged) { staged_report_ = staged.report; }

  // Once all rounds are over: whether all means are finite and can be stored.
  bool means_fit();
  // Past the commit point.
  void commit_all();

 private:
  struct Part {
    const Basis* basis = nullptr;
    bool is_staged = false;
    std::size_t begin = 0;
    std::size_t length = 0;
    std::size_t words_begin = 0, words = 0, norms_begin = 0, norms = 0;  // of a code
    std::size_t staged_begin = 0, staged = 0;                            // pieces of a stage
  };

  bool is_coded(const Part& part) const { return part.basis && part.basis->code; }
  bool is_apart(const Part& part) const { return part.is_staged || is_coded(part); }
  bool wants_own_error() const { return work_.feedback || work_.measured; }
  // Whether the residual is what this worker's own message lacks, and not the mean: sums lose nothing of the coefficients.
  bool has_own(const Part& part) const { return is_coded(part) || (part.is_staged && work_.feedback); }
  std::span<float> sent_of(std::size_t i) const {
    return (is_apart(parts_[i]) ? apart_ : sums_).subspan(parts_[i].begin, parts_[i].length);
  }
  std::span<float> own_of(const Part& part) const { return own_.subspan(part.begin, part.length); }
  std::span<float> lost_of(const Part& part) const { return lost_.empty() ? lost_ : lost_.subspan(part.begin, part.length); }
  std::span<float> norms_of(std::size_t i) const { return norms_.subspan(parts_[i].norms_begin, parts_[i].norms); }
  std::span<std::int32_t> words_of(std::size_t i) const { return words_.subspan(parts_[i].words_begin, parts_[i].words); }
  std::span<float> values_room(std::size_t i, std::size_t thread) const {
    return values_.subspan(thread * longest_, work_.pieces[i].elements());
  }
  std::span<float> coefficients_room(std::size_t i, std::size_t thread) const {
    return coefficients_.subspan(thread * most_coefficients_, parts_[i].length);
  }
  std::span<float> slices_room(std::size_t thread) const { return slices_.subspan(thread * slices_size_, slices_size_); }
  float share(const Part& part) const { return part.is_staged ? 1.0f : 1.0f / static_cast<float>(context_.world_size()); }

  void plan();
  bool read_head(std::span<const float> message);
  void take_room_for_coefficients();
  void begin_learning();
  bool is_by_channel(const Part& part) const { return part.is_staged && part.basis && part.basis->by_channel; }
  void order_by_channel(std::size_t i, std::size_t thread) const;
  std::span<float> as_rows(std::size_t i, std::span<float> coefficients, std::size_t thread) const;
  void keep_own(const Part& part) const;
  std::span<const float> read(std::size_t i, std::size_t thread);
  void project(const Basis& basis, std::span<const float> values, std::span<float> sent, std::size_t thread) const;
  void reconstruct(const Basis& basis, std::span<float> sent, float share, std::span<float> values, std::size_t thread) const;
  void decode_words(std::size_t i, std::span<float> coefficients) const;
  std::span<float> own_coefficients(std::size_t i) const;
  double staged_error(std::size_t i) const;
  float kept_back(const Piece& piece) const;
  bool bound_fits(std::size_t i) const;
  bool mean_fits(std::size_t i, std::size_t thread) const;
  double own_error(std::size_t i, std::span<const float> values, std::size_t thread) const;
  void commit_unused(std::size_t i) const;
  void commit_values(const CommitRooms& rooms, std::size_t i, std::size_t thread) const;
  void commit_projected(const CommitRooms& rooms, std::size_t i, std::size_t thread) const;

  template <class Body>
  void for_each(const Body& body) const {
    for_each_piece(work_, context_, [&](const Piece&, std::size_t i, std::size_t thread) { body(i, thread); });
  }

  CycleTerms terms_;
  Work& work_;
  Context& context_;
  Head head_;
  std::span<Part> parts_;
  std::span<float> sums_;
  std::span<float> apart_;  // coefficients that are not summed as floats; of a code this worker's own, as its levels say them, in the end the mean's
  std::span<std::int32_t> words_;
  std::span<float> norms_;
  std::span<Piece> staged_pieces_;
  std::span<float> own_, lost_;  // with feedback and a stage, as apart_: this worker's coefficients, and what the stage loses of them
  Report staged_report_;         // without feedback, where the error is measured
  std::span<float> head_numbers_;  // in sums_ or norms_; empty without feedback
  // Room for each thread: a piece that is projected, its coefficients where they are wanted, slices.
  std::span<float> values_, coefficients_, slices_;
  std::size_t longest_ = 0, most_coefficients_ = 0, slices_size_ = 0;
};

}  // namespace thinwire
