"""Sparse gradients through the hook: nn.Embedding(sparse=True) and nn.EmbeddingBag."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import thinwire.torch
from small_models import ddp
from worker_pool import pool

ROWS, WIDTH, WORKERS = 200, 8, 3


class Words(nn.Module):
    """An embedding, a bag and a dense layer, with sparse gradients or with dense ones."""

    def __init__(self, sparse):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(ROWS, WIDTH, sparse=sparse)
        self.bag = nn.EmbeddingBag(50, WIDTH, sparse=sparse, mode="sum")
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, words):
        return self.head(self.embedding(words).mean(1) + self.bag(words % 50))


def words(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, ROWS, (4, 5), generator=generator)


def sparse_step(spec, steps=4):
    """Every step's gradients of the table and the bag, sparse and dense forms of the model, on one worker."""
    rank, taken = dist.get_rank(), []
    sparse, dense = ddp(Words(sparse=True)), ddp(Words(sparse=False))
    with thinwire.torch.attach(sparse, spec, small_uncompressed=False), thinwire.torch.attach(dense, spec, small_uncompressed=False):
        for step in range(steps):
            for model in (sparse, dense):
                model.zero_grad()
                model(words(step, rank)).square().sum().backward()
            for ours, its in zip((sparse.module.embedding, sparse.module.bag), (dense.module.embedding, dense.module.bag)):
                gradient = ours.weight.grad
                assert gradient.is_sparse and gradient.is_coalesced()
                if "casq" not in spec:  # a rounding apart is another code
                    torch.testing.assert_close(gradient.to_dense(), its.weight.grad)
                taken.append((gradient.indices(), gradient.values()))
    return taken


@pytest.mark.parametrize("spec", ["s2:mode=exact", "s2", "s2:mode=gather", "s2:mode=exact/casq:bits=2", "none", "coordinates"])
def test_means_are_sparse_the_same_everywhere_and_those_of_dense_gradients(spec):
    everyones = pool(WORKERS).run(sparse_step, spec)
    for others in everyones[1:]:
        for (indices, values), (its, others_values) in zip(everyones[0], others):
            assert torch.equal(indices, its) and torch.equal(values, others_values)


def against_ddp():
    """The same model under DDP's own sums, and under thinwire."""
    rank, gradients = dist.get_rank(), []
    for attached in (False, True):
        model = ddp(Words(sparse=True))
        attachment = thinwire.torch.attach(model, "s2", small_uncompressed=False) if attached else None
        for step in range(3):
            model.zero_grad()
            model(words(step, rank)).square().sum().backward()
        gradients.append([p.grad.to_dense() for p in model.parameters()])
        if attachment:
            attachment.close()
    for plain, ours in zip(*gradients):
        torch.testing.assert_close(plain, ours)


def test_means_are_those_of_ddp():
    pool(WORKERS).run(against_ddp)


def trains_with_sparse_adam():
    model = ddp(Words(sparse=True))
    tables = [p for name, p in model.named_parameters() if not name.startswith("module.head")]
    optimisers = [torch.optim.SparseAdam(tables, lr=0.01), torch.optim.SGD(model.module.head.parameters(), lr=0.01)]
    with thinwire.torch.attach(model, "s2:mode=exact/casq:bits=2", small_uncompressed=False) as attachment:
        losses = []
        for step in range(30):
            model.zero_grad()
            loss = (model(words(step % 3, dist.get_rank())) - 1).square().mean()
            loss.backward()
            losses.append(loss.item())
            for optimiser in optimisers:
                optimiser.step()
        assert losses[-1] < 0.5 * losses[0]
        assert attachment.stats()["row_bytes"] > 0
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_trains():
    everyones = pool(WORKERS).run(trains_with_sparse_adam)
    assert all(torch.equal(everyones[0], other) for other in everyones[1:])


def has_nan():
    model = ddp(Words(sparse=True))
    with thinwire.torch.attach(model, "s2:mode=sketch", small_uncompressed=False):
        for step in range(3):
            model.zero_grad()
            scale = float("nan") if step == 1 and dist.get_rank() == 1 else 1.0
            (scale * model(words(step, dist.get_rank())).square().sum()).backward()
            finite = all(p.grad.to_dense().isfinite().all() for p in model.parameters())
            assert finite == (step != 1)


def test_nan_reaches_every_worker_and_is_gone_in_the_next_step():
    pool(WORKERS).run(has_nan)


def nobody_uses_a_row():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(50, WIDTH, sparse=True, mode="sum")

        def forward(self, words, offsets):
            return self.bag(words, offsets)

    model = ddp(Bag())
    with thinwire.torch.attach(model, "s2"):
        empty = torch.empty(0, dtype=torch.long)
        mine = torch.tensor([3]) if dist.get_rank() == 0 else empty
        for words_of_step in (empty, mine):
            model.zero_grad()
            model(words_of_step, torch.tensor([0])).sum().backward()
        return model.module.bag.weight.grad.to_dense()


def test_workers_without_rows():
    everyones = pool(WORKERS).run(nobody_uses_a_row)
    for mean in everyones:
        assert torch.equal(mean[3], torch.full((WIDTH,), 1 / WORKERS)) and mean.count_nonzero() == WIDTH
