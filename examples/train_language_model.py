"""Trains a word-level LSTM with a large embedding on real text with DDP; thinwire is one line.

    torchrun --nproc-per-node 4 examples/train_language_model.py [--sparse] [--compressor s2]

The embedding's gradient has few rows that are not zero, and `--sparse` makes it a sparse tensor; either way it travels by
`--compressor`, all else by `--rest`. `--compressor plain` leaves thinwire out. The text is that of Debian's package
python3.11-doc, or of bible-kjv with bible-kjv-text.
"""

import argparse
import math
import re
import subprocess
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SEQUENCE, WIDTH = 35, 128


def words():
    """The text as numbers of words, the most frequent word 0, and how many different ones there are."""
    folder = Path("/usr/share/doc/python3.11/html/_sources")
    if folder.is_dir():
        text = "\n".join(file.read_text(errors="replace") for file in sorted(folder.rglob("*.txt")))
    else:
        text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=True).stdout
    tokens = re.findall(r"\w+|[^\w\s]", text)
    numbers = {word: number for number, (word, _) in enumerate(Counter(tokens).most_common())}
    return torch.tensor([numbers[token] for token in tokens]), len(numbers)


class WordModel(nn.Module):
    def __init__(self, vocabulary, sparse):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH, sparse=sparse)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, vocabulary, [2000])

    def forward(self, before, following):
        hidden, _ = self.lstm(self.embedding(before))
        loss = self.softmax(hidden.flatten(0, 1), following.flatten()).loss
        # A batch without rare words leaves their projections out, and DDP waits for every parameter's gradient.
        return loss + 0.0 * sum(parameter.sum() for parameter in self.softmax.tail.parameters())


def main():
    options = argparse.ArgumentParser(description="A language model with DDP and thinwire.")
    options.add_argument("--compressor", default="s2:mode=exact/casq:bits=2", help="of the embedding: a thinwire spec, or plain")
    options.add_argument("--rest", default="casq:bits=2", help="of all else")
    options.add_argument("--sparse", action="store_true", help="the embedding's gradients are sparse tensors")
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--batch", type=int, default=16, help="sequences per worker and step")
    options.add_argument("--test-limit", type=int, default=512, help="sequences that the perplexity is measured on")
    options = options.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, workers = dist.get_rank(), dist.get_world_size()
    text, vocabulary = words()
    model = DistributedDataParallel(WordModel(vocabulary, options.sparse))
    if options.compressor != "plain":
        import thinwire.torch
        attachment = thinwire.torch.attach(model, options.rest, rules={"embedding.*": options.compressor})  # the one line

    optimizer = torch.optim.Adagrad(model.parameters(), 0.05)  # takes sparse gradients
    sequences = (len(text) - 1) // SEQUENCE
    training = int(0.95 * sequences)
    generator = torch.Generator().manual_seed(0)

    def batch(numbers):
        places = numbers.unsqueeze(1) * SEQUENCE + torch.arange(SEQUENCE)
        return text[places], text[places + 1]

    for step in range(options.steps):
        drawn = torch.randint(training, (workers, options.batch), generator=generator)
        loss = model(*batch(drawn[rank]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}/{options.steps}: loss {loss.item():.3f}", flush=True)

    model.eval()
    with torch.inference_mode():
        mine = torch.arange(training, sequences)[: options.test_limit][rank::workers]
        total = sum(model.module(*batch(part)) * len(part) for part in mine.split(32))
    count = torch.tensor(float(len(mine)))
    dist.all_reduce(total)
    dist.all_reduce(count)
    if rank == 0:
        print(f"perplexity {math.exp(total / count):.1f} of a vocabulary of {vocabulary:,}")
        if options.compressor != "plain":
            stats = attachment.stats()
            print(f"each worker sent {stats['traffic_bytes'] / 1e6:.1f} MB, {stats['row_bytes'] / 1e6:.1f} MB of it rows of the "
                  f"embedding, where plain all-reduce would have sent {stats['plain_bytes'] / 1e6:.0f} MB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
