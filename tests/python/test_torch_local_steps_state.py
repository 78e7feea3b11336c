"""What LocalSteps saves, and which states it refuses."""

import copy
import io

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from local_trainings import adam, average, deep_linear, flat, local_steps, residuals, saved, sgd, train
from small_models import ddp
from thinwire import StateError
from worker_pool import pool

RESUMED = [
    {},
    {"fragments": 2},
    {"overlap": 3},
    {"fragments": 2, "overlap": 2, "compressor": "casq:bits=2,retrain=3"},
    {"outer": average, "compressor": "none"},
]


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
