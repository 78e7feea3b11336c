// How long a training step takes whose gradients travel compressed: a prediction, from what its parts take.
#pragma once

#include <span>

#include "thinwire/link.h"

namespace thinwire {

// A bucket's way through a step.
struct BucketCost {
  double ready_seconds = 0;    // after the step's beginning, if nothing but the computation takes the processor's time
  double encode_seconds = 0;   // until the first of its rounds,
  double between_seconds = 0;  // from there to the last one, in even parts; of less than two rounds nothing
  double decode_seconds = 0;   // and behind that
  int rounds = 1;
  int hops = 0;      // of all rounds: messages of which each waits for the one before, as around a ring; 0: one a round
  double bytes = 0;  // that a worker sends, in each round as many
};

// What all buckets of a step have in common.
struct StepCost {
  double compute_seconds = 0;  // all that the step does besides averaging gradients
  double hidden = 0;           // share of codecs' work and of sending for which the computation leaves cores idle, from 0 to 1
  double sending_seconds = 0;  // that the processor takes of each byte to send it, and to receive one
  int lanes = 1;
  int senders = 1;  // workers of a host that share its link, each of which sends as much
  Link link;
};

struct StepTime {
  double seconds = 0;
  double waiting_seconds = 0;  // of them, behind the computation's end
  double codec_seconds = 0;    // encoding and decoding, wherever it takes place,
  double sending_seconds = 0;  // and what sending takes of the processor
  double wire_seconds = 0;     // in which the link carries bytes
};

// Buckets go to lanes in turns, and a lane finishes one before it begins the next. There are two stations, which all lanes share, as threads share
// cores and messages a link: the processor, which encodes, sends and decodes, and the link. With n buckets there, each gets an n-th of a station. In each
// of its rounds a bucket is at both at once, and waits for the round behind the link alone; what the owners of its parts do before the next round
// begins when it is done with all three.
//
//   service at the link: senders * bytes / rounds / bytes_per_second   behind it: round_seconds, and for each further hop of the round
//     round_seconds less what the link takes of all senders' bytes of a hop beyond one's first segment, if that is not negative
//   service at the processor: encode_seconds, bytes / rounds * sending_seconds, between_seconds / (rounds - 1), decode_seconds
//
// The computation is one more thread that wants the processor, as far as its cores are not idle: beside n buckets that are there it goes on at
// hidden + (1 - hidden) / (n + 1) of its pace, and with it what is not ready yet; the buckets together have 1 - (1 - hidden) / (n + 1) of the processor.
//
// On two levels (ReducerOptions::hosts) what workers of a host do for each other is part of encoding and decoding, bytes and rounds are those between hosts.
//
// Pre: ready times ascend and lie within the computation; at least one lane and one sender; a link that is known.
StepTime predict_step(const StepCost& step, std::span<const BucketCost> buckets);

}  // namespace thinwire
