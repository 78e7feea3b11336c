"""The language task: a word-level LSTM with a large embedding, on real text."""

from __future__ import annotations

import math

import torch
from torch import nn

from bench import text
from bench.training.settings import Place, Settings
from bench.training.trainer import Trainer

SEQUENCE = 35  # words
_WIDTH, _HIDDEN = 128, 128
_HEAD = 2000  # most frequent words, whose softmax is over all; the rest share a class and have a narrower one
_TEST_SHARE = 0.05
_TEST_SEQUENCES = 1024


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
        loss = self.softmax(hidden.flatten(0, 1), following.flatten()).loss
        # A batch without rare words leaves their projections out, and DDP waits for every parameter's gradient.
        return loss + 0.0 * sum(parameter.sum() for parameter in self.softmax.tail.parameters())


class Sequences:
    """Stretches of SEQUENCE words, by their number."""

    def __init__(self, words: torch.Tensor) -> None:
        self._words = words

    def __len__(self) -> int:
        return (len(self._words) - 1) // SEQUENCE

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = indices.unsqueeze(1) * SEQUENCE + torch.arange(SEQUENCE)
        return self._words[places], self._words[places + 1]


class TaskTrainer(Trainer):
    """Its score is the perplexity of text that was not trained on."""

    quick_test_count, test_batch = 256, 32

    def __init__(self, settings: Settings, place: Place) -> None:
        corpus = text.load(settings.data)
        self._vocabulary = corpus.vocabulary
        words = torch.from_numpy(corpus.words)
        split = int(len(words) * (1 - _TEST_SHARE))
        self.train_text, self.test_text = Sequences(words[:split]), Sequences(words[split:])
        super().__init__(settings, place, len(self.train_text), min(len(self.test_text), _TEST_SEQUENCES))

    def make_model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return WordModel(self._vocabulary, self.settings.sparse_embedding)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Adagrad: rows without a gradient stay as they are, whether gradients are dense or sparse."""
        return torch.optim.Adagrad(parameters, self.settings.learning_rate)

    def hidden_matrices(self, model: nn.Module) -> list[nn.Parameter]:
        return [model.lstm.weight_ih_l0, model.lstm.weight_hh_l0]

    def loss(self, model: nn.Module, indices: torch.Tensor) -> torch.Tensor:
        return model(*self.train_text.batch(indices))

    def test_sum(self, model: nn.Module, indices: torch.Tensor) -> float:
        return model(*self.test_text.batch(indices)).item() * len(indices)

    def score(self, mean: float) -> float:
        return math.exp(mean)
