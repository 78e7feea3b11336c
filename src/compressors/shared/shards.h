// The first half of scattering, in which every piece has an owner, to whom its codes go.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>

#include "compressors/shared/averaging.h"
#include "compressors/shared/coded_message.h"
#include "compressors/shared/riders.h"
#include "core/exchange.h"
#include "core/varied.h"

namespace thinwire {

// The message's pieces by owner, and what a worker sends to each of them.
class Shards {
 public:
  Shards(const Codec& codec, const Work& work, std::size_t tail, Context& context)
      : codec_(codec), work_(work), pieces_(context.scratch().take<const Piece*>(work.pieces.size())),
        begins_(context.scratch().take<std::size_t>(static_cast<std::size_t>(context.world_size()) + 1)),
        formats_(context.scratch().take<MessageFormat>(count())) {
    std::size_t next = 0;
    begins_[0] = 0;
    for (std::size_t owner = 0; owner < count(); ++owner) {
      for (const Piece& piece : work.pieces)
        if (piece.owner == owner) pieces_[next++] = &piece;
      begins_[owner + 1] = next;
      std::construct_at(&formats_[owner], codec, pieces(owner), tail, context.scratch());
      most_ = std::max(most_, formats_[owner].most_bytes());
    }
  }

  const Codec& codec() const { return codec_; }
  std::size_t count() const { return begins_.size() - 1; }
  std::span<const Piece* const> pieces() const { return pieces_; }
  std::span<const Piece* const> pieces(std::size_t owner) const { return of_owner(pieces_, owner); }
  std::uint64_t elements() const { return work_.elements; }
  const MessageFormat& format(std::size_t owner) const { return formats_[owner]; }

  // The most that a shard takes. With a fixed length all take as much.
  std::size_t most_bytes() const { return most_; }
  // Of the longest message of any worker, which all are filled up to: what is sent for each element.
  void foresee(Pass pass, std::size_t longest) const {
    const auto sent = static_cast<double>(count() * formats_.front().sent_bytes(longest));
    codec_.foresee(pieces_, pass, sent / static_cast<double>(std::max<std::uint64_t>(work_.elements, 1)));
  }
  // Of what is usually sent each message has an equal part, however long its shard is.
  PayloadLengths lengths(Pass pass) const {
    std::size_t sent = 0;
    for (const MessageFormat& format : formats_) sent += format.usual_bytes(pass);
    return {(sent + count() - 1) / count(), most_};
  }
  // For Encoding: the messages to all owners, and an owner's of its own pieces.
  std::span<const MessageCodes> codes_to_owners(Scratch& scratch) const {
    const auto messages = scratch.take<MessageCodes>(count());
    const std::size_t usual = lengths(Pass::kFirst).usual;
    for (std::size_t owner = 0; owner < count(); ++owner) messages[owner] = {begins_[owner], begins_[owner + 1], formats_[owner].code_bytes(usual)};
    return messages;
  }
  MessageCodes codes_of(std::size_t owner) const {
    return {0, pieces(owner).size(), formats_[owner].code_bytes(lengths(Pass::kSecond).usual)};
  }

  // Of the piece at `place` in pieces(): its place among its owner's, and its index in the message.
  std::size_t place_at_owner(std::size_t place) const { return place - begins_[pieces_[place]->owner]; }
  std::size_t index(std::size_t place) const { return static_cast<std::size_t>(pieces_[place] - work_.pieces.data()); }
  template <class T>
  std::span<T> of_owner(std::span<T> by_place, std::size_t owner) const {
    return by_place.subspan(begins_[owner], begins_[owner + 1] - begins_[owner]);
  }

 private:
  static_assert(std::is_trivially_destructible_v<MessageFormat>, "scratch calls no destructors");

  const Codec& codec_;
  const Work& work_;
  std::span<const Piece*> pieces_;
  std::span<std::size_t> begins_;  // of the owners' pieces
  std::span<MessageFormat> formats_;
  std::size_t most_ = 0;
};

// What a worker sends in the first round, a message to each owner. Where it adds its own values as they are, it has no codes for itself.
class OwnShards {
 public:
  OwnShards(const Shards& shards, Context& context)
      : shards_(shards), rank_(static_cast<std::size_t>(context.rank())), memory_(context.scratch().take<std::byte>(shards.most_bytes() * shards.count())),
        room_(context.scratch().take<std::span<std::byte>>(shards.pieces().size())),
        lengths_(context.scratch().take<std::size_t>(shards.pieces().size())),
        messages_(context.scratch().take<MessageToSend>(shards.count())),
        owned_parts_(owned().size(), context, [this](std::size_t i) { return owned()[i]->elements(); }) {
    for (std::size_t owner = 0; owner < shards.count(); ++owner)
      std::construct_at(&messages_[owner], shards.format(owner), memory_.subspan(owner * shards.most_bytes(), shards.most_bytes()),
                        shards.of_owner(room_, owner), shards.of_owner(lengths_, owner));
    if (is_added(rank_)) values_ = context.scratch().take<float>(owned_parts_.count());
  }

  // All shards are completed after the last is encoded: every owner is told if anything is not finite. What this worker did not use is left
  // out where owners alone get means: nobody could tell it whether others have.
  void encode(const Work& work, const OwnLefts& lefts, const Riders& riders, Head& head, Context& context) const {
    const OwnValues values(work, shards_.pieces(), head);
    read_owned(values, head, context);
    const auto codes = shards_.codes_to_owners(context.scratch());
    encode_own(shards_.codec(), shards_.pieces(), values, room_to_fill(context), lengths_, codes, lefts, head, context);
    context.threads().for_each(messages_.size(), work.elements, [&](std::size_t owner, std::size_t) {
      for (std::size_t i = 0; i < shards_.pieces(owner).size(); ++i) {
        const bool used = head.used(static_cast<std::size_t>(shards_.pieces(owner)[i] - work.pieces.data()));
        if (used) messages_[owner].mark_used(i);
        if (is_added(owner) || (work.direction == Direction::kToOwners && !used)) messages_[owner].leave_out(i);
      }
      riders.write(owner, messages_[owner].tail());
      messages_[owner].complete(head.finite());
    });
  }

  std::span<std::byte> memory() const { return memory_; }
  std::span<const std::byte> bytes(std::size_t owner) const { return messages_[owner].bytes(); }
  // Pre: !is_added(that piece's owner).
  std::span<const std::byte> code(std::size_t place) const {
    return messages_[shards_.pieces()[place]->owner].code(shards_.place_at_owner(place));
  }

  // The pieces that this worker owns, and where each lies in buffers of all of them.
  std::span<const Piece* const> owned() const { return shards_.pieces(rank_); }
  const PieceParts& owned_parts() const { return owned_parts_; }
  // Whether what is an owner's is added as it is: it is this worker, and the codec one that does so.
  bool is_added(std::size_t owner) const { return owner == rank_ && shards_.codec().owners_add_values(); }
  // mean <- that of the i-th piece which this worker owns, of what it received. only_used: of those whose senders used the piece; else of all.
  // codes: room for one of each worker.
  void average(std::span<const ReceivedMessage> received, std::size_t i, bool only_used, std::span<std::span<const std::byte>> codes,
               std::span<float> mean, std::span<std::byte> room) const;

 private:
  // What this worker adds to the i-th piece that it owns.
  std::span<float> values(std::size_t i) const { return owned_parts_.of(values_, i); }

  void read_owned(const OwnValues& values, Head& head, Context& context) const {
    if (values_.empty()) return;
    const auto first = static_cast<std::size_t>(owned().data() - shards_.pieces().data());
    std::atomic<bool> finite = true;
    context.threads().for_each(owned().size(), values_.size(), [&](std::size_t i, std::size_t thread) {
      if (!values.read(first + i, this->values(i), thread).finite) finite.store(false, std::memory_order_relaxed);
    });
    if (!finite) head.note_not_finite();
  }

  std::span<const std::span<std::byte>> room_to_fill(Context& context) const {
    if (values_.empty()) return room_;
    const auto room = context.scratch().take<std::span<std::byte>>(room_.size());
    for (std::size_t place = 0; place < room.size(); ++place)
      room[place] = is_added(shards_.pieces()[place]->owner) ? std::span<std::byte>() : room_[place];
    return room;
  }

  static_assert(std::is_trivially_destructible_v<MessageToSend>, "scratch calls no destructors");

  const Shards& shards_;
  std::size_t rank_;
  std::span<std::byte> memory_;
  std::span<std::span<std::byte>> room_;
  std::span<std::size_t> lengths_;
  std::span<MessageToSend> messages_;
  PieceParts owned_parts_;
  std::span<float> values_;  // of the pieces that are added
};

// payloads: messages in rank order, of owner_of(rank)'s pieces each.
std::span<ReceivedMessage> received_messages(const Shards& shards, std::span<const std::span<const std::byte>> payloads,
                                             const auto& owner_of, Scratch& scratch) {
  const auto messages = scratch.take<ReceivedMessage>(payloads.size());
  for (std::size_t rank = 0; rank < payloads.size(); ++rank)
    std::construct_at(&messages[rank], shards.format(owner_of(rank)), payloads[rank], scratch);
  return messages;
}

// What all owners have sent to all, a message of its own pieces each.
class OwnersMessages {
 public:
  OwnersMessages(const Shards& shards, std::span<const ReceivedMessage> messages, Context& context)
      : shards_(shards), messages_(messages), rooms_(shards.codec(), shards.pieces(), 1, context) {}

  // Of the piece at `place` in the shards' pieces: whether its owner has sent anything of it,
  bool used(std::size_t place) const { return message(place).used(shards_.place_at_owner(place)); }
  // and, if it has, values <- what that decodes to.
  void decode(std::size_t place, std::span<float> values, std::size_t thread) const {
    if (!unpacked_.empty()) return shards_.codec().decode_unpacked(unpacked_[place], 1, false, values);
    shards_.codec().decode(code(place), *shards_.pieces()[place], 1, false, values, rooms_.of(thread));
  }
  // left <- left less what that decodes to.
  void take_from(std::size_t place, std::span<float> left, std::size_t thread) const {
    shards_.codec().decode(code(place), *shards_.pieces()[place], -1, true, left, rooms_.of(thread));
  }
  // The mean for commit(), in rooms; or nothing, if it is decoded to its place.
  std::span<float> decode_mean(std::size_t place, const CommitRooms& rooms, const Work& work, std::size_t thread) const {
    const std::size_t index = shards_.index(place);
    if (const auto gradient = rooms.past_caches(work, index); !gradient.empty() && !unpacked_.empty()) {
      shards_.codec().decode_unpacked(unpacked_[place], 1 / work.gradient_scale, true, gradient);
      return {};
    }
    const std::span<float> mean = rooms.mean(work, index, thread);
    decode(place, mean, thread);
    return mean;
  }
  // Unpacks codes that are to be unpacked. Returns an upper bound of all of it, if codes were checked as messages were read, or are now; nothing if they
  // are better checked as they are decoded.
  std::optional<double> unpack(const Readings& readings, Context& context);
  // A thread's, between its decodings here.
  std::span<std::byte> room(std::size_t thread) const { return rooms_.of(thread); }
  // Whether all of it can be stored.
  bool fit(const EarlyMeans& early) const {
    return early.fit([&](std::size_t place, std::span<float> values, std::size_t thread) {
      if (!used(place)) return false;
      decode(place, values, thread);
      return true;
    });
  }

 private:
  const ReceivedMessage& message(std::size_t place) const { return messages_[shards_.pieces()[place]->owner]; }
  std::span<const std::byte> code(std::size_t place) const { return message(place).code(shards_.place_at_owner(place)); }

  const Shards& shards_;
  std::span<const ReceivedMessage> messages_;
  CodecRooms rooms_;
  std::span<std::span<std::byte>> unpacked_;  // by place
};

// Fills `received` with what all workers have sent to this one, and `payloads` with the bytes of that.
Exchange send_to_owners(const Shards& shards, const OwnShards& own, std::span<std::span<const std::byte>> payloads,
                        std::span<ReceivedMessage>& received, Context& context);
// Fills `payloads` with what all owners have sent to all, of which `message`, of this worker's pieces, is one.
Exchange send_to_all(const Shards& shards, const MessageToSend& message, std::span<std::span<const std::byte>> payloads, Context& context);

}  // namespace thinwire
