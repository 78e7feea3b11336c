"""The recommender's task: neural collaborative filtering on ratings of movies."""

from __future__ import annotations

import math

import torch
from torch import nn

from bench import ratings
from bench.training.settings import Place, Settings
from bench.training.trainer import Trainer

_WIDTH = 64
_DEVIATION = 0.05  # of the embeddings' first values
_TEST_SHARE = 0.1


class Filter(nn.Module):
    """Stars from what is learnt of a user and of a movie (He et al., "Neural Collaborative Filtering", 2017)."""

    def __init__(self, users: int, movies: int, mean: float, sparse: bool) -> None:
        super().__init__()
        self.user_embedding = nn.Embedding(users, _WIDTH, sparse=sparse)
        self.movie_embedding = nn.Embedding(movies, _WIDTH, sparse=sparse)
        for embedding in (self.user_embedding, self.movie_embedding):
            nn.init.normal_(embedding.weight, std=_DEVIATION)
        self.layers = nn.Sequential(nn.Linear(3 * _WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1))
        nn.init.constant_(self.layers[-1].bias, mean)

    def forward(self, users: torch.Tensor, movies: torch.Tensor) -> torch.Tensor:
        """The stars of each pair."""
        user, movie = self.user_embedding(users), self.movie_embedding(movies)
        return self.layers(torch.cat([user, movie, user * movie], 1)).squeeze(1)


class TaskTrainer(Trainer):
    """Its score is the RMSE, in stars, of ratings that were not trained on."""

    quick_test_count, test_batch = 2500, 2500

    def __init__(self, settings: Settings, place: Place) -> None:
        self._ratings = ratings.load(settings.data)
        count = len(self._ratings.stars)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))  # the file is sorted by users
        columns = [torch.from_numpy(each)[order] for each in (self._ratings.users, self._ratings.movies, self._ratings.stars)]
        split = int(count * (1 - _TEST_SHARE))
        self.train_ratings, self.test_ratings = [each[:split] for each in columns], [each[split:] for each in columns]
        super().__init__(settings, place, split, count - split)

    def make_model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Filter(self._ratings.user_count, self._ratings.movie_count, self.train_ratings[2].mean().item(),
                      self.settings.sparse_embedding)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Adagrad, as for the language model."""
        return torch.optim.Adagrad(parameters, self.settings.learning_rate)

    def loss(self, model: nn.Module, indices: torch.Tensor) -> torch.Tensor:
        users, movies, stars = (each[indices] for each in self.train_ratings)
        return nn.functional.mse_loss(model(users, movies), stars)

    def test_sum(self, model: nn.Module, indices: torch.Tensor) -> float:
        users, movies, stars = (each[indices] for each in self.test_ratings)
        return nn.functional.mse_loss(model(users, movies), stars, reduction="sum").item()

    def score(self, mean: float) -> float:
        return math.sqrt(mean)
