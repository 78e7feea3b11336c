#include "reducer/two_levels.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "compressors/shared/message.h"
#include "core/aligned.h"
#include "kernels/half.h"

namespace thinwire {
namespace {



bool is_finite(const GradientSpan& values) {
  if (values.is_float()) return kernels::scan(values.floats()).finite;
  const std::span halves(reinterpret_cast<const std::uint16_t*>(values.bytes.data()), values.size());
  return (values.type == ElementType::kBfloat16 ? kernels::scan_bf16(halves) : kernels::scan_fp16(halves)).finite;
}

// A stretch of the bucket, in one part.
struct Stretch {
  std::size_t entry = 0;
  std::size_t part = 0;
  std::uint64_t first = 0;     // element of the parameter
  std::uint64_t elements = 0;  // at most a chunk's
  std::size_t offset = 0;      // in its part's message
};

// The bucket as workers of a host send it to each other: a message for each of them, of the bucket's entries in their order. All are as
// long as the longest; what lies between and behind entries, and what goes to a worker that owns no part, means nothing.
class HostMessages {
 public:
  explicit HostMessages(const TwoLevelReduction& reduction)
      : reduction_(reduction), entries_(reduction.lane.whole), workers_(reduction.groups.members(Group::kWithinHost).size()),
        own_(static_cast<std::size_t>(reduction.groups.part())) {
    Scratch& scratch = reduction.lane.host_scratch;
    scratch.reset();
    stretches_ = scratch.take<Stretch>(count_stretches());
    std::size_t next = 0;
    for (std::size_t part = 0; part < reduction.parts.size(); ++part) {
      std::size_t offset = 0;
      for (std::size_t entry = 0; entry < entries_.size(); ++entry) {
        const ParameterRange& range = range_of(part, entry);
        const std::size_t element = element_bytes(entries_[entry].type);
        for (std::uint64_t first = 0; first < range.elements; first += kChunkElements) {
          const std::uint64_t count = std::min(kChunkElements, range.elements - first);
          stretches_[next++] = {entry, part, range.first + first, count, offset + first * element};
        }
        offset = whole_lines(offset + range.elements * element);
      }
      bytes_ = std::max(bytes_, offset);
    }
  }

  // What a worker's memory that the host shares must hold: gradients of all parts, and its own part's means.
  std::size_t shared_bytes() const { return bytes_ * (reduction_.parts.size() + 1); }
  bool is_shared() const { return !shared_.empty(); }
  double traffic_bytes() const { return 2 * static_cast<double>((workers_ - 1) * bytes_); }

  // Where the memory is; else messages carry it.
  void use(const HostMemory& memory) {
    shared_ = memory.stretches();
    if (is_shared()) return;
    Scratch& scratch = reduction_.lane.host_scratch;
    sent_ = scratch.take<std::byte>(bytes_ * workers_);
    received_ = scratch.take<std::byte>(bytes_ * workers_);
  }
  std::span<std::byte> sent() const { return sent_; }
  std::span<std::byte> received() const { return received_; }
  std::span<std::byte> own_means() const { return means_to(); }

  void pack_gradients() const {
    for_each([&](const Stretch& stretch) {
      if (stretch.part == own_) return;
      const auto from = gradient(stretch).bytes;
      std::memcpy(gradients_to(stretch.part).data() + stretch.offset, from.data(), from.size());
    });
  }

  // This worker's part <- weight times the sum of what has come, in rank order.
  void add_up(float weight) const {
    for_each_own([&](const Stretch& stretch) {
      const std::span<float> sum = sum_of(stretch);
      for (std::size_t worker = 0; worker < workers_; ++worker)
        read_values(worker == own_ ? gradient(stretch) : within(gradients_of(worker), stretch), weight,
                    worker == 0 ? std::span<float>() : sum, sum);
    });
  }

  // Returns whether this worker's part is finite.
  bool pack_means() const {
    std::atomic<bool> finite = true;
    for_each_own([&](const Stretch& stretch) {
      const GradientSpan mean = within(means_to(), stretch);
      store_mean(sum_of(stretch), 1, mean, {});
      if (!is_finite(mean)) finite.store(false, std::memory_order_relaxed);
    });
    return finite;
  }

  // Whether all that has come is.
  bool means_are_finite() const {
    std::atomic<bool> finite = true;
    for_each([&](const Stretch& stretch) {
      if (!is_finite(within(means_of(stretch.part), stretch))) finite.store(false, std::memory_order_relaxed);
    });
    return finite;
  }

  void unpack_means() const {
    for_each([&](const Stretch& stretch) {
      const auto mean = within(means_of(stretch.part), stretch).bytes;
      std::memcpy(gradient(stretch).bytes.data(), mean.data(), mean.size());
    });
  }

 private:
  const ParameterRange& range_of(std::size_t part, std::size_t entry) const { return reduction_.parts[part][entries_[entry].parameter]; }
  std::size_t count_stretches() const {
    std::size_t count = 0;
    for (std::size_t part = 0; part < reduction_.parts.size(); ++part)
      for (std::size_t entry = 0; entry < entries_.size(); ++entry)
        count += static_cast<std::size_t>((range_of(part, entry).elements + kChunkElements - 1) / kChunkElements);
    return count;
  }

  template <class Body>
  void for_each(const Body& body) const {
    std::uint64_t elements = 0;
    for (const Stretch& stretch : stretches_) elements += stretch.elements;
    reduction_.bucket.context.threads().for_each(stretches_.size(), elements, [&](std::size_t i, std::size_t) { body(stretches_[i]); });
  }
  template <class Body>
  void for_each_own(const Body& body) const {
    for_each([&](const Stretch& stretch) {
      if (stretch.part == own_) body(stretch);
    });
  }

  ElementType type(const Stretch& stretch) const { return entries_[stretch.entry].type; }
  GradientSpan gradient(const Stretch& stretch) const {
    return GradientSpan(type(stretch), entries_[stretch.entry].data).part(stretch.first, stretch.elements);
  }
  GradientSpan within(std::span<std::byte> message, const Stretch& stretch) const {
    return {type(stretch), message.subspan(stretch.offset, stretch.elements * element_bytes(type(stretch)))};
  }
  // Where gradients for the owner of a part go, where this worker's part comes from another worker, and the same of means.
  std::span<std::byte> gradients_to(std::size_t part) const { return (is_shared() ? shared_[place()] : sent_).subspan(part * bytes_, bytes_); }
  std::span<std::byte> gradients_of(std::size_t worker) const {
    return is_shared() ? shared_[worker].subspan(own_ * bytes_, bytes_) : received_.subspan(worker * bytes_, bytes_);
  }
  std::span<std::byte> means_to() const { return is_shared() ? shared_means(place()) : sent_.first(bytes_); }
  std::span<std::byte> means_of(std::size_t owner) const {
    return is_shared() ? shared_means(owner) : received_.subspan(owner * bytes_, bytes_);
  }
  // At the end: beyond the gradients of any bucket, whose messages are longer or shorter than this one's.
  std::span<std::byte> shared_means(std::size_t worker) const { return shared_[worker].last(bytes_); }
  std::size_t place() const { return static_cast<std::size_t>(reduction_.groups.place(Group::kWithinHost)); }
  // Of a stretch of this worker's part, as it is summed and averaged.
  std::span<float> sum_of(const Stretch& stretch) const {
    const std::uint64_t first = stretch.first - range_of(stretch.part, stretch.entry).first;
    return GradientSpan(ElementType::kFloat32, reduction_.lane.gradients[stretch.entry].data).part(first, stretch.elements).floats();
  }

  const TwoLevelReduction& reduction_;
  std::span<const ParameterGradient> entries_;
  std::size_t workers_;
  std::size_t own_;  // part
  std::span<Stretch> stretches_;
  std::size_t bytes_ = 0;  // of a message
  std::span<const std::span<std::byte>> shared_;  // by worker
  std::span<std::byte> sent_, received_;
};

}  // namespace

// A stretch of shared memory is written again with the next bucket of its lane: gradients, at its beginning, when this bucket's means are
// there, for which all have read them; means, at its end, when all have written their next gradients, and so have read the means before.
Exchange reduce_on_two_levels(TwoLevelReduction reduction) {
  Context& context = reduction.bucket.context;
  const Membership within{Group::kWithinHost, reduction.groups.place(Group::kWithinHost), reduction.groups.size(Group::kWithinHost), 0};
  context.join(within);
  context.enter(Phase::kEncode);
  HostMessages messages(reduction);
  Exchange sharing = share_memory(reduction.lane.host_memory, messages.shared_bytes(), reduction.host_memory, context);
  co_await sharing;
  messages.use(reduction.lane.host_memory);
  messages.pack_gradients();
  // Where memory is shared, all that is to be known is that the others have come as far, and then whether their means are finite.
  std::array<std::int32_t, 1> failed = {0};
  Await gradients = messages.is_shared() ? context.max(failed) : context.scatter(messages.sent(), messages.received());
  co_await gradients;
  messages.add_up(static_cast<float>(reduction.groups.weight()));

  context.join(reduction.between);
  Exchange between = reduce_bucket(reduction.bucket);
  co_await between;

  context.join(within);
  context.enter(Phase::kDecode);
  failed[0] = messages.pack_means() ? 0 : 1;
  Await means = messages.is_shared() ? context.max(failed) : context.gather(messages.own_means(), messages.received());
  co_await means;
  if (messages.is_shared()) reduction.bucket.counters.within_host_bytes += messages.traffic_bytes();
  // A part that is not finite is so on all hosts, whose workers so find the same.
  if (messages.is_shared() ? failed[0] != 0 : !messages.means_are_finite()) {
    for (const ParameterGradient& gradient : reduction.lane.whole) fill_with_nan(gradient, context.threads());
    reduction.bucket.counters.non_finite = 1;
    reduction.bucket.step.fail();
    co_return;
  }
  messages.unpack_means();
  reduction.bucket.step.deliver(reduction.lane.whole);
}

}  // namespace thinwire
