"""Which rows of an embedding the workers of a step use."""

from __future__ import annotations

import numpy as np

from bench import text


class RealText:
    """Each worker reads its own stretches of a corpus, as in training a language model."""

    name = "real text"

    def __init__(self, tokens: int = 1120) -> None:
        self._corpus, self._tokens = text.load(), tokens  # 32 sequences of 35 words
        self.rows = self._corpus.vocabulary

    @property
    def description(self) -> str:
        return f"{self._corpus.name}, {self._tokens} tokens a worker and step, vocabulary of {self.rows:,}"

    def used(self, step: int, worker: int) -> np.ndarray:
        random = np.random.default_rng([step, worker])
        starts = random.integers(0, len(self._corpus.words) - 35, self._tokens // 35)
        return np.unique(np.concatenate([self._corpus.words[start:start + 35] for start in starts]))


class Independent:
    """Each worker uses every row with the same probability."""

    name = "independent rows"

    def __init__(self, rows: int = 50_000, share: float = 0.05) -> None:
        self.rows, self._share = rows, share

    @property
    def description(self) -> str:
        return f"{self._share:.0%} of {self.rows:,} rows a worker"

    def used(self, step: int, worker: int) -> np.ndarray:
        random = np.random.default_rng([7, step, worker])
        return np.flatnonzero(random.random(self.rows) < self._share)


class Zipf:
    """Row r is drawn with probability in proportion to 1/(r+1), until about `share` of the rows are used."""

    name = "Zipfian rows"

    def __init__(self, rows: int = 50_000, share: float = 0.05) -> None:
        self.rows, self._share = rows, share
        weights = 1 / np.arange(1, rows + 1)
        self._cumulated = np.cumsum(weights / weights.sum())

    @property
    def description(self) -> str:
        return f"about {self._share:.0%} of {self.rows:,} rows a worker, by Zipf's law"

    def used(self, step: int, worker: int) -> np.ndarray:
        random = np.random.default_rng([11, step, worker])
        used = np.zeros(self.rows, bool)
        while used.sum() < self._share * self.rows:
            used[np.searchsorted(self._cumulated, random.random(500))] = True
        return np.flatnonzero(used)


def gradient(kind: RealText | Independent | Zipf, width: int, step: int, worker: int) -> np.ndarray:
    """float32 (rows, width): Laplace where the worker uses a row, else zero."""
    random = np.random.default_rng([13, step, worker])
    result = np.zeros((kind.rows, width), np.float32)
    used = kind.used(step, worker)
    result[used] = random.laplace(size=(len(used), width)).astype(np.float32)
    return result
