"""The language task: a word-level LSTM with a large embedding, on real text."""

from __future__ import annotations

import functools
import math

import torch
import torch.distributed as dist
from torch import nn

from bench import text
from bench.training import data
from bench.training.settings import Place, Settings
from bench.training.trainer import Trainer

SEQUENCE = 35  # words
_WIDTH, _HIDDEN = 128, 128
_HEAD = 2000  # most frequent words, whose softmax is over all; the rest share a class and have a narrower one
_TEST_SHARE = 0.05
_QUICK_TEST_SEQUENCES, _TEST_SEQUENCES = 256, 1024
_TEST_BATCH = 32


@functools.cache
def corpus(name: str | None) -> text.Corpus:
    return text.load(name)


class WordModel(nn.Module):
    """Predicts each next word. The embedding holds most parameters, and a batch uses few of its rows."""

    def __init__(self, vocabulary: int, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, _WIDTH, sparse=sparse)
        self.lstm = nn.LSTM(_WIDTH, _HIDDEN, batch_first=True)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(_HIDDEN, vocabulary, [_HEAD])

    def forward(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Mean negative log likelihood of the words that follow; both (batch, SEQUENCE)."""
        hidden, _ = self.lstm(self.embedding(words))
        return self.softmax(hidden.flatten(0, 1), following.flatten()).loss


def make_model(settings: Settings, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return WordModel(corpus(settings.corpus).vocabulary, settings.sparse_embedding)


class Sequences:
    """Stretches of SEQUENCE words, by their number."""

    def __init__(self, words: torch.Tensor) -> None:
        self._words = words

    def __len__(self) -> int:
        return (len(self._words) - 1) // SEQUENCE

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = indices.unsqueeze(1) * SEQUENCE + torch.arange(SEQUENCE)
        return self._words[places], self._words[places + 1]


class LanguageTrainer(Trainer):
    """Trains on a corpus; its score is the perplexity of text that it has not seen."""

    def __init__(self, settings: Settings, place: Place) -> None:
        self.settings, self.place = settings, place
        words = torch.from_numpy(corpus(settings.corpus).words)
        split = int(len(words) * (1 - _TEST_SHARE))
        self.train_text, self.test_text = Sequences(words[:split]), Sequences(words[split:])

    def order(self, seed: int) -> data.Order:
        count = min(len(self.train_text), self.settings.train_limit or len(self.train_text))
        return data.Order(count, self.settings.workers, self.settings.batch, seed)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Adagrad: rows without a gradient stay as they are, whether gradients are dense or sparse."""
        return torch.optim.Adagrad(model.parameters(), self.settings.learning_rate)

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, indices: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = model(*self.train_text.batch(indices))
        loss.backward()
        optimizer.step()
        return loss.item()

    @torch.inference_mode()
    def test(self, model: nn.Module, quick: bool) -> float:
        """Perplexity; each worker reads its share."""
        count = min(len(self.test_text), self.settings.test_limit or _TEST_SEQUENCES, _QUICK_TEST_SEQUENCES if quick else _TEST_SEQUENCES)
        mine = torch.arange(self.place.rank, count, self.settings.workers)
        total = torch.zeros(2, dtype=torch.float64)
        for part in mine.split(_TEST_BATCH):
            total += torch.tensor([model(*self.test_text.batch(part)).item() * len(part), len(part)], dtype=torch.float64)
        dist.all_reduce(total)
        return math.exp((total[0] / total[1]).item())
