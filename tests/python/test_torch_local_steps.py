"""LocalSteps against DiLoCo and Streaming DiLoCo in NumPy's double precision; and what it keeps, refuses and survives."""

import copy
import io
import math
import os
import signal
import time
from unittest import mock

import numpy
import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import Mixed, ddp
from thinwire import ArgumentError, PeerError, StateError
from thinwire.torch.turns import Turns, divided
from torch import nn
from torch.distributed.fsdp import fully_shard
from worker_pool import WorkerPool, pool

TIMEOUT = 5  # seconds
INPUTS, HIDDEN, OUTPUTS, BATCH = 8, 40, 30, 6
INNER_RATE = 0.05
NAMES = ["0.weight", "0.bias", "1.weight", "1.bias"]


def deep_linear(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=INNER_RATE)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def adagrad(model):
    return torch.optim.Adagrad(model.parameters(), lr=0.05)


def average(parameters):
    """Plain local SGD."""
    return torch.optim.SGD(parameters, lr=1)


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(BATCH, INPUTS, generator=generator), torch.randn(BATCH, OUTPUTS, generator=generator)


def inner_step(model, optimizer, step, rank):
    inputs, targets = batch(step, rank)
    optimizer.zero_grad()
    (model(inputs) - targets).square().mean().backward()
    optimizer.step()


def flat(model):
    return torch.cat([parameter.detach().flatten().float() for parameter in model.parameters()])


def train(local, model, optimizer, steps, first=1):
    for step in range(first, first + steps):
        inner_step(model, optimizer, step, dist.get_rank())
        local.step()


def local_steps(model, optimizer, every, **options):
    return thinwire.torch.LocalSteps(model, optimizer, every, **({"timeout": 30} | options))


def residuals(local):
    return {name: row["residual"] for name, row in local.state_dict(all_ranks=False)["parameters"].items()}


# --- exactness


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


# --- compression


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


# --- saved states

RESUMED = [
    {},
    {"fragments": 2},
    {"overlap": 3},
    {"fragments": 2, "overlap": 2, "compressor": "casq:bits=2,retrain=3"},
    {"outer": average, "compressor": "none"},
]


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def loaded(data):
    """By the loader that trusts nobody."""
    return torch.load(io.BytesIO(data), weights_only=True)


def run_whole(options, steps):
    model = deep_linear()
    optimizer = adam(model)
    with local_steps(model, optimizer, 4, **options) as local:
        train(local, model, optimizer, steps)
        return flat(model)


def run_first(options, steps, all_ranks):
    model = deep_linear()
    optimizer = adam(model)
    with local_steps(model, optimizer, 4, **options) as local:
        train(local, model, optimizer, steps)
        return saved([model.state_dict(), optimizer.state_dict(), local.state_dict(all_ranks=all_ranks)])


def run_rest(options, first, steps, checkpoints):
    model = deep_linear(seed=5)
    optimizer = adam(model)
    with local_steps(model, optimizer, 4, **options) as local:
        weights, inner, state = loaded(checkpoints[dist.get_rank()])
        model.load_state_dict(weights)
        optimizer.load_state_dict(inner)
        local.load_state_dict(state)
        train(local, model, optimizer, steps, first=first + 1)
        assert local.stats()["steps"] == steps
        return flat(model)


@pytest.mark.parametrize("options", RESUMED)
def test_a_resumed_training_continues_with_the_same_bits(options):
    """Between two outer steps, at one, and with a change under way."""
    whole = pool(3).run(run_whole, options, 11)
    for first, all_ranks in ((5, True), (6, False), (8, True)):
        checkpoints = pool(3).run(run_first, options, first, all_ranks)
        rest = pool(3).run(run_rest, options, first, 11 - first, checkpoints)
        for expected, resumed in zip(whole, rest, strict=True):
            assert torch.equal(expected, resumed)


def mean_residual(local):
    residual = residuals(local)["1.weight"]
    dist.all_reduce(residual)
    return residual / dist.get_world_size()


def run_three():
    model = deep_linear()
    with local_steps(model, sgd(model), 4) as local:
        train(local, model, sgd(model), 8)
        return saved([model.state_dict(), local.state_dict(all_ranks=True, to=1)]), mean_residual(local), flat(model)


def continue_with_others(checkpoint, residual, shared):
    weights, state = loaded(checkpoint)
    model = deep_linear()
    with local_steps(model, sgd(model), 4) as local:
        model.load_state_dict(weights)
        local.load_state_dict(state)
        assert torch.equal(flat(model), shared)
        torch.testing.assert_close(mean_residual(local), residual, rtol=1e-5, atol=1e-8)
        with local.shared_parameters():
            assert torch.equal(flat(model), shared)
        train(local, model, sgd(model), 4, first=9)
        return flat(model)


@pytest.mark.parametrize("workers", [1, 2])
def test_another_number_of_workers_goes_on(workers):
    answers = pool(3).run(run_three)
    checkpoint, residual, shared = answers[1]
    first, *others = pool(workers).run(continue_with_others, checkpoint, residual, shared)
    assert all(torch.equal(first, other) for other in others) and not torch.equal(first, shared)


def check_refused_states():
    model = deep_linear()
    with local_steps(model, sgd(model), 4) as local:
        train(local, model, sgd(model), 6)
        kept = copy.deepcopy(local.state_dict(all_ranks=False))
        with thinwire.torch.attach(ddp(deep_linear()), "casq:rate=0.25") as attachment:
            attachments = attachment.state_dict(all_ranks=False)

        def broken(change):
            state = copy.deepcopy(kept)
            change(state["outer"]["shared"])
            return state

        cases = [
            ({}, "no state"),
            (attachments | {"terms": kept["terms"]}, "no state of local steps"),
            (kept | {"terms": kept["terms"] | {"every": 5}}, "another every: it was 5, and is 4 now"),
            (kept | {"terms": kept["terms"] | {"outer optimizer": "Adam"}}, "another outer optimizer: it was 'Adam'"),
            (broken(lambda shared: shared["values"].pop("0.bias")), "do not fit: KeyError: '0.bias'"),
            (broken(lambda shared: shared["values"].update({"0.bias": torch.zeros(3)})), "do not fit: ValueError: shapes"),
            (broken(lambda shared: shared["optimizer"]["param_groups"].pop()), "do not fit: ValueError"),
            (kept | {"parameters": dict(list(kept["parameters"].items())[1:])}, "parameters"),
        ]
        for wrong, said in cases:
            with pytest.raises(StateError, match=said):
                local.load_state_dict(wrong)
            assert saved(local.state_dict(all_ranks=False)) == saved(kept)
        with pytest.raises(StateError, match="LocalSteps.all_ranks"):
            local.state_dict()


def test_states_that_do_not_fit_are_refused_and_change_nothing():
    pool(2).run(check_refused_states)


# --- failures


def check_nan(make_optimizer, options, bad_rank):
    with mock.patch.object(thinwire.torch.local_steps, "_BUCKET_BYTES", 1):  # a bucket for each parameter, of which some stay finite
        return train_with_nan(make_optimizer, options, bad_rank)


def train_with_nan(make_optimizer, options, bad_rank):
    model = deep_linear()
    optimizer = make_optimizer(model)
    overlap = options.get("overlap", 0)
    with local_steps(model, optimizer, 3, **options) as local:
        train(local, model, optimizer, 3 + overlap)
        before = saved(residuals(local))
        with local.shared_parameters():
            shared = flat(model)
        for step in range(4 + overlap, 7):
            inner_step(model, optimizer, step, dist.get_rank())
            if step == 6 and dist.get_rank() == bad_rank:
                inputs = torch.full((BATCH, INPUTS), math.nan)
                optimizer.zero_grad()
                model(inputs).mean().backward()
                optimizer.step()
            own = flat(model)
            local.step()
        for step in range(7, 7 + overlap):
            inner_step(model, optimizer, step, dist.get_rank())
            own = flat(model)
            local.step()
        assert local.stats()["failed_steps"] == 1 and local.stats()["outer_steps"] == 1
        assert "1 steps failed" in str(local)
        assert saved(residuals(local)) == before
        # The others keep what they have trained.
        assert torch.equal(flat(model), shared if dist.get_rank() == bad_rank else own)
        train(local, model, optimizer, 3, first=7 + overlap)
        assert local.stats()["failed_steps"] == 1 and local.stats()["outer_steps"] == 2
        assert torch.isfinite(flat(model)).all()
        with local.shared_parameters():
            return flat(model)


@pytest.mark.parametrize("make_optimizer", [sgd, adam, adagrad])
@pytest.mark.parametrize(("workers", "options"), [(1, {}), (3, {}), (3, {"rules": {"*": "casq:bits=2"}}), (3, {"compressor": "none"}), (2, {"overlap": 1})])
def test_an_outer_step_with_nan_is_skipped_on_all_workers(make_optimizer, workers, options):
    first, *others = pool(workers).run(check_nan, make_optimizer, options, workers - 1)
    assert all(torch.equal(first, other) for other in others)


def fails(local, step):
    begin = time.monotonic()
    with pytest.raises(PeerError, match="another worker is lost") as raised:
        step()
    seconds = time.monotonic() - begin
    with pytest.raises(StateError, match="this LocalSteps is of no further use, since it failed"):
        local.step()
    return type(raised.value).__name__, seconds


def die_or_stop(bad_rank, how, options):
    model = deep_linear()
    optimizer = sgd(model)
    local = local_steps(model, optimizer, 3, timeout=TIMEOUT, **options)
    train(local, model, optimizer, 5)
    before = saved(residuals(local))
    dist.barrier()
    if dist.get_rank() == bad_rank:
        os.kill(os.getpid(), how)

    def slowly():
        train(local, model, optimizer, 1, first=6)
        time.sleep(1)  # with an overlap, a lane may have failed long before its mean is due
        train(local, model, optimizer, options.get("overlap", 0), first=7)

    answer = fails(local, slowly)
    assert saved(residuals(local)) == before
    assert torch.isfinite(flat(model)).all()
    local.close()
    return answer


@pytest.fixture
def own_pool():
    workers = WorkerPool(3)
    yield workers
    workers.kill()


@pytest.mark.parametrize("options", [{}, {"overlap": 2, "compressor": "none"}])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_lost_or_stands_still_ends_the_others(own_pool, how, options):
    own_pool.begin(die_or_stop, 1, how, options)
    for rank in (0, 2):
        outcome, failure = own_pool.answer(rank, limit=60)
        assert failure is None, failure
        kind, seconds = outcome
        assert kind == "PeerError"
        assert seconds < 2 * TIMEOUT + 3  # a worker may notice only when the one between has given up


def check_closed():
    model = deep_linear()
    local = local_steps(model, sgd(model), 1)
    local.close()
    local.close()
    with pytest.raises(StateError, match="this LocalSteps is closed"):
        local.step()
    with pytest.raises(TypeError, match="neither copied nor pickled; save its state_dict"):
        copy.deepcopy(local)


def check_late_unfreezing():
    model = deep_linear()
    model[0].requires_grad_(False)
    with local_steps(model, sgd(model), 1) as local:
        local.step()
        model[0].requires_grad_(True)
        with pytest.raises(StateError, match="'0.weight' is trained, and required no gradient .*make a new one after unfreezing"):
            local.step()


def test_a_parameter_that_was_frozen_at_first_is_refused():
    pool(2).run(check_late_unfreezing)


def test_a_closed_one_refuses_to_work():
    pool(2).run(check_closed)


# --- refusals


def refused(said, model, optimizer=None, every=2, kind=ArgumentError, **options):
    with pytest.raises(kind, match=said):
        thinwire.torch.LocalSteps(model, optimizer or sgd(model), every, **options)


def check_refusals():
    model = deep_linear()
    refused("got DistributedDataParallel.*ddp_model.module", ddp())
    refused("takes a torch.nn.Module; got int", 5, sgd(model))
    refused("whose parameters are sharded", fully_shard(deep_linear()))
    refused("no parameter that requires a gradient", nn.ReLU(), sgd(model))
    refused("optimizer = int; allowed: the torch.optim.Optimizer", model, 5)
    refused("trains a parameter of shape .40, 8. that the model does not have", model, sgd(deep_linear()))
    for every in (0, -1, 1.5, None):
        refused(f"every = {every}; allowed: 1 to", model, every=every)
    refused("fragments = 3; allowed: 1 to 2, as there are 4 parameters and every = 2", model, fragments=3)
    refused("fragments = 5; allowed: 1 to 4", model, every=9, fragments=5)
    refused("overlap = 3; allowed: 0 to every // fragments = 2", model, overlap=3)
    refused("overlap = -1; allowed", model, overlap=-1)
    for mixing in (1, -0.1, "half", math.nan):
        refused("mixing = .*; allowed: 0 or more, and less than 1", model, overlap=1, mixing=mixing)
    refused("outer = 0.7; allowed: a function", model, outer=0.7)
    refused("outer made None; allowed: a function", model, outer=lambda parameters: None)
    refused("outer made an optimizer of other tensors", model, outer=lambda parameters: torch.optim.SGD(parameters[1:]))
    refused("bits=9", model, compressor="casq:bits=9")
    refused("'.embed' matches no parameter", model, rules={"*embed": "none"})
    refused("seed = -1", model, seed=-1)
    refused("timeout = 0; allowed", model, timeout=0)
    refused("parameter '0.weight' is torch.float64, and .* takes", deep_linear().double(), compressor="casq:bits=2,feedback=off",
            rules={"*": "casq:bits=2"})


def test_what_cannot_work_is_refused():
    pool(2).run(check_refusals)


def check_disagreement(by_rank, kinds, said):
    rank = dist.get_rank()
    options = dict(by_rank[rank])
    refused(said, deep_linear(options.pop("model_seed", 0)), kind=kinds[rank], **options)
    model = deep_linear()
    with local_steps(model, sgd(model), 1) as local:  # nobody is left hanging
        local.step()


@pytest.mark.parametrize(
    ("by_rank", "said"),
    [
        ([{}, {"model_seed": 1}, {}], "initial parameters .set one seed, or load one checkpoint.: .* on ranks 0, 2, .* on rank 1"),
        ([{"every": 3}, {}, {}], "every: 3 on rank 0, 2 on ranks 1, 2"),
        ([{}, {}, {"outer": average}], "outer: .*lr: 0.7.*on ranks 0, 1, .*lr: 1.* on rank 2"),
        ([{}, {"overlap": 1}, {}], "overlap: 0 on ranks 0, 2, 1 on rank 1"),
        ([{}, {"compressor": "none"}, {}], "compressors: .* on rank 1"),
    ],
    ids=["parameters", "every", "outer", "overlap", "compressor"],
)
def test_workers_that_disagree_all_learn_who_wants_what(by_rank, said):
    pool(3).run(check_disagreement, by_rank, [ArgumentError] * 3, said)


def test_a_worker_that_cannot_begin_tells_the_others():
    pool(3).run(check_disagreement, [{}, {"every": 0}, {}], [PeerError, ArgumentError, PeerError], "every = 0; allowed")


def check_part_of_the_world():
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return None
    model = deep_linear()
    with local_steps(model, sgd(model), 2, group=group) as local:
        train(local, model, sgd(model), 2)
        assert local.stats()["traffic_bytes"] > 0
        return flat(model)


def test_the_workers_may_be_a_part_of_the_world(own_pool):
    _, first, second = own_pool.run(check_part_of_the_world)
    assert torch.equal(first, second)


def test_without_a_process_group_it_says_so():
    model = deep_linear()
    refused("no process group; call .*init_process_group.* first, also for one worker", model)
