"""LocalSteps against DiLoCo and Streaming DiLoCo in NumPy's double precision: what is averaged, when, and what is lost."""

import math

import numpy
import pytest
import torch
import torch.distributed as dist
from local_trainings import INNER_RATE, adam, average, batch, deep_linear, flat, inner_step, local_steps, residuals, sgd, train
from small_models import Mixed
from thinwire.torch.turns import Turns, divided
from torch import nn
from worker_pool import pool

NAMES = ["0.weight", "0.bias", "1.weight", "1.bias"]


class NumpyWorkers:
    """All workers, one after the other, in double precision."""

    def __init__(self, workers):
        model = deep_linear()
        self.shared = [parameter.detach().double().numpy().copy() for parameter in model.parameters()]
        self.own = [[value.copy() for value in self.shared] for _ in range(workers)]
        self.velocity = [None] * len(self.shared)

    def inner_step(self, step):
        for rank, (first, first_bias, second, second_bias) in enumerate(self.own):
            inputs, targets = (each.double().numpy() for each in batch(step, rank))
            hidden = inputs @ first.T + first_bias
            error = 2 * (hidden @ second.T + second_bias - targets) / targets.size
            back = error @ second
            for value, gradient in ((first, back.T @ inputs), (first_bias, back.sum(0)), (second, error.T @ hidden), (second_bias, error.sum(0))):
                value -= INNER_RATE * gradient

    def mean_change(self, index):
        return sum(self.shared[index] - own[index] for own in self.own) / len(self.own)

    def outer_step(self, index, change, mixing):
        """Nesterov's momentum, as Sutskever et al. (2013) write it, at a constant rate; then the mixing."""
        velocity = change if self.velocity[index] is None else 0.9 * self.velocity[index] + change
        self.velocity[index] = velocity
        self.shared[index] -= 0.7 * (change + 0.9 * velocity)
        for own in self.own:
            own[index][...] = mixing * own[index] + (1 - mixing) * self.shared[index]


def numpy_training(workers, steps, turns, overlap, mixing):
    """turns: by their place in a cycle of H steps, the parameters that are sent then."""
    states, every, sent = NumpyWorkers(workers), max(turns), {}
    for step in range(1, steps + 1):
        states.inner_step(step)
        for index, change in sent.pop(step, {}).items():
            states.outer_step(index, change, mixing)
        place = (step - 1) % every + 1
        if place in turns:
            sent[step + overlap] = {index: states.mean_change(index) for index in turns[place]}
            if overlap == 0:
                for index, change in sent.pop(step).items():
                    states.outer_step(index, change, mixing)
    return states


def run_none(every, options, steps):
    model = deep_linear()
    with local_steps(model, sgd(model), every, compressor="none", **options) as local:
        train(local, model, sgd(model), steps)
        own = flat(model)
        with local.shared_parameters():
            return own, flat(model), local.stats()


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(
    ("every", "options", "turns", "mixing"),
    [
        (1, {}, {1: [0, 1, 2, 3]}, 0),
        (4, {}, {4: [0, 1, 2, 3]}, 0),
        (5, {"fragments": 2}, {2: [0, 1], 5: [2, 3]}, 0),
        (4, {"overlap": 2}, {4: [0, 1, 2, 3]}, 0.5),
        (4, {"overlap": 4, "mixing": 0}, {4: [0, 1, 2, 3]}, 0),
        (6, {"fragments": 2, "overlap": 3, "mixing": 0.25}, {3: [0, 1], 6: [2, 3]}, 0.25),
    ],
)
def test_uncompressed_it_is_diloco(workers, every, options, turns, mixing):
    steps = 17
    answers = pool(workers).run(run_none, every, options, steps)
    expected = numpy_training(workers, steps, turns, options.get("overlap", 0), mixing)
    for rank, (own, shared, stats) in enumerate(answers):
        numpy.testing.assert_allclose(own, numpy.concatenate([each.ravel() for each in expected.own[rank]]), rtol=1e-4, atol=2e-6)
        numpy.testing.assert_allclose(shared, numpy.concatenate([each.ravel() for each in expected.shared]), rtol=1e-4, atol=2e-6)
        assert torch.equal(shared, answers[0][1])
        sent = steps // every * len(turns) + sum(place <= steps % every for place in turns)
        used = sum(step + options.get("overlap", 0) <= steps for step in range(1, steps + 1) if (step - 1) % every + 1 in turns)
        assert stats["steps"] == steps and stats["failed_steps"] == 0
        assert stats["outer_steps"] == used <= sent
        if workers == 1:
            assert stats["traffic_bytes"] == stats["rounds"] == 0


def test_bytes_are_those_of_the_formula():
    """Plain DDP sends a ring's sum of every gradient; these workers one of every change."""
    elements = sum(parameter.numel() for parameter in deep_linear().parameters())
    for _, _, stats in pool(3).run(run_none, 4, {}, 12):
        ring = 2 * 2 / 3 * 4 * elements
        assert stats["plain_bytes"] == pytest.approx(12 * ring)
        assert stats["traffic_bytes"] == pytest.approx(3 * ring, rel=0.02)  # and a mark a chunk
        assert stats["ratio"] == pytest.approx(stats["plain_bytes"] / stats["traffic_bytes"])


def check_kinds(module):
    """Parameters of all types, tied, empty, frozen, and in other orders of memory."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = module()
    frozen = {name: parameter.clone() for name, parameter in model.named_parameters() if not parameter.requires_grad}
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with local_steps(model, sgd(model), 1, outer=average, compressor="none") as local:
        for step in range(2):
            everyones = []
            for each in range(world_size):
                generator = torch.Generator().manual_seed(10 * step + each)
                moved = {name: p.detach() + torch.randn(p.shape, generator=generator).to(p.dtype) / 8 for name, p in trained.items()}
                everyones.append(moved)
            # Between outer steps the workers are alike, so that everybody knows what the others' will be.
            with torch.no_grad():
                for name, parameter in trained.items():
                    parameter.copy_(everyones[rank][name])
            local.step()
            for name, parameter in trained.items():
                mean = sum(moved[name].double() for moved in everyones) / world_size
                precision = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float64: 1e-14}.get(parameter.dtype, 1e-6)
                torch.testing.assert_close(parameter.double(), mean, rtol=2 * precision, atol=precision)
        assert local.stats()["outer_steps"] == 2
    for name, parameter in frozen.items():
        assert torch.equal(parameter, dict(model.named_parameters())[name])


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)).to(memory_format=torch.channels_last)


def double():
    return deep_linear().double()


@pytest.mark.parametrize("module", [Mixed, convolutions, double])
def test_parameters_of_all_kinds_are_averaged(module):
    pool(2).run(check_kinds, module)


def check_small_changes_of_bfloat16_add_up():
    """The shared parameters are float32: eight outer steps of an eighth of what bfloat16 can tell apart make one."""
    model = nn.Linear(4, 4, bias=False).bfloat16()
    with torch.no_grad():
        model.weight.fill_(1)
    with local_steps(model, sgd(model), 1, outer=lambda p: torch.optim.SGD(p, lr=1 / 8), compressor="none") as local:
        for _ in range(8):
            with torch.no_grad():
                model.weight.add_(2**-7)
            local.step()
        assert (model.weight == 1 + 2**-7).all()
        assert all((shared == 1 + 2**-7).all() for shared in local.outer.param_groups[0]["params"])


def test_small_changes_of_bfloat16_add_up():
    pool(2).run(check_small_changes_of_bfloat16_add_up)


def check_overlap():
    """While a change is on its way, the worker trains on: worker 1 sends nothing before it hears that worker 0 has gone on."""
    model = deep_linear()
    optimizer = sgd(model)
    with local_steps(model, optimizer, 2, overlap=1) as local:
        dist.barrier()
        inner_step(model, optimizer, 1, 0)
        local.step()
        word = torch.zeros(1)
        if dist.get_rank() == 1:
            dist.recv(word, 0)
        local.step()
        if dist.get_rank() == 0:
            dist.send(word, 1)
        local.step()
        return local.stats()["outer_steps"]


def test_sending_overlaps_computing():
    assert pool(2).run(check_overlap) == [1, 1]


def test_turns_are_evenly_distributed():
    for every in range(1, 13):
        for fragments in range(1, every + 1):
            turns = Turns(every, fragments)
            places = [step for step in range(1, 2 * every + 1) if turns.after(step) is not None]
            assert [turns.after(step) for step in places] == 2 * list(range(fragments))
            assert min(b - a for a, b in zip([0, *places], places, strict=False)) == turns.shortest


@pytest.mark.parametrize(
    ("elements", "fragments", "expected"),
    [([4, 4, 4, 4], 2, [2, 2]), ([100, 1, 1], 3, [1, 1, 1]), ([1, 1, 100], 2, [2, 1]), ([0, 0], 2, [1, 1]), ([5, 1, 1, 5, 1, 1], 2, [3, 3])],
)
def test_fragments_are_of_about_equal_size(elements, fragments, expected):
    runs = divided(elements, fragments)
    assert [len(run) for run in runs] == expected
    assert [index for run in runs for index in run] == list(range(len(elements)))


def check_nothing_is_lost(spec):
    """Over all workers: changes and old residuals = W times the mean and new residuals."""
    model = deep_linear()
    optimizer = adam(model)
    world_size = dist.get_world_size()
    with local_steps(model, optimizer, 3, outer=average, compressor=spec) as local:
        kept = {name: torch.zeros(math.prod(shape)) for name, shape in local._parameters.layout}
        for step in range(1, 10):
            inner_step(model, optimizer, step, dist.get_rank())
            own = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
            with local.shared_parameters():
                before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
            local.step()
            if step % 3:
                continue
            new = residuals(local)
            for name, parameter in model.named_parameters():
                left = new[name] if new[name].numel() else torch.zeros_like(kept[name])  # empty: none
                sums = torch.stack([(before[name] - own[name]).flatten() + kept[name], left])
                dist.all_reduce(sums)
                mean = (before[name] - parameter.detach()).flatten()
                torch.testing.assert_close(world_size * mean + sums[1], sums[0], rtol=1e-4, atol=1e-6)
                kept[name] = left
        stats = local.stats()
        assert kept["1.weight"].norm() > 0
        assert 0 < stats["compression_error"] < 1 and stats["compressed_share"] > 0.5 and stats["ratio"] > 3
        return flat(model)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("spec", ["casq:rate=0.25", "casq:bits=2,reduce=scatter", "topk:density=.05"])
def test_what_compression_loses_is_sent_later(workers, spec):
    first, *others = pool(workers).run(check_nothing_is_lost, spec)
    assert all(torch.equal(first, other) for other in others)


def check_rules():
    model = deep_linear()
    with local_steps(model, sgd(model), 2, rules={"0.weight": "none", "1.*": "casq:bits=3"}) as local:
        assert local.compressors["0.weight"] == local.compressors["0.bias"] == "none"
        assert "bits=3" in local.compressors["1.weight"]
        train(local, model, sgd(model), 2)
        assert "2, 1 outer steps" in str(local)


def test_rules_choose_by_name():
    pool(2).run(check_rules)
