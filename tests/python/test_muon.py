"""bench.training.muon: two optimizers as one."""

import pytest

torch = pytest.importorskip("torch")

from bench.training.muon import MuonBeside  # noqa: E402


def parameters():
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((6, 4), (5,), (3, 4))]


def test_each_part_trains_its_own_as_alone_and_a_schedule_reaches_both():
    together, alone = parameters(), parameters()
    optimizer = MuonBeside(together, [together[2]], 0.1, lambda others: torch.optim.Adagrad(others, 0.5))
    parts = [torch.optim.Muon([alone[2]], lr=0.1, weight_decay=0.0), torch.optim.Adagrad(alone[:2], 0.5)]
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: 1 / (1 + step)) for each in (optimizer, *parts)]
    for _ in range(4):
        gradients = [torch.randn_like(each) for each in together]
        for values in (together, alone):
            for value, gradient in zip(values, gradients, strict=True):
                value.grad = gradient.clone()
        for each in (optimizer, *parts, *schedules):
            each.step()
        for value, expected in zip(together, alone, strict=True):
            assert torch.equal(value, expected)
    assert {id(value) for value in optimizer.state} == {id(value) for value in together}
    assert all(part.state is optimizer.state for part in optimizer._parts)
    with pytest.raises(ValueError, match="no closure"):
        optimizer.step(lambda: None)
