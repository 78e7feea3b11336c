"""What an attachment remembers: saved, loaded, refused, and handed to another number of workers."""

import io

import pytest
import thinwire
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import ddp, gradients, layers, train
from worker_pool import WorkerPool, pool

SPEC = "casq:bits=2,retrain=3"


def attached(model, spec=SPEC, **options):
    # Whole bits: floats that the engine sums are as reproducible as the engine.
    return thinwire.torch.attach(model, spec, **({"timeout": 30, "small_uncompressed": False} | options))


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def loaded(data):
    """By the loader that trusts nobody."""
    return torch.load(io.BytesIO(data), weights_only=True)


def optimiser_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def run_whole(steps):
    model = ddp()
    with attached(model):
        return train(model, steps, dist.get_rank(), optimiser_of(model))


def run_first(steps, all_ranks):
    model = ddp()
    optimiser = optimiser_of(model)
    with attached(model) as attachment:
        taken = train(model, steps, dist.get_rank(), optimiser)
        return taken, saved([model.module.state_dict(), optimiser.state_dict(), attachment.state_dict(all_ranks=all_ranks)])


def run_rest(steps, first, checkpoints):
    rank = dist.get_rank()
    weights, momentum, state = loaded(checkpoints[rank])
    module = layers(seed=99)
    module.load_state_dict(weights)
    model = ddp(module)
    optimiser = optimiser_of(model)
    optimiser.load_state_dict(momentum)
    with attached(model) as attachment:
        attachment.load_state_dict(state)
        assert attachment.stats()["steps"] == first
        return train(model, steps, rank, optimiser, first=first)


@pytest.mark.parametrize("all_ranks", [False, True])
def test_a_resumed_training_continues_with_the_same_bits(all_ranks):
    """Three workers, several buckets; the second half in new processes."""
    whole = pool(3).run(run_whole, 8)
    begun = pool(3).run(run_first, 4, all_ranks)
    checkpoints = [checkpoint for _, checkpoint in begun]
    if all_ranks:  # what one worker saved serves all
        checkpoints = [checkpoints[0]] * 3
    fresh = WorkerPool(3)
    rest = fresh.run(run_rest, 4, 4, checkpoints)
    assert fresh.close() == [0, 0, 0]
    for rank in range(3):
        for expected, step in zip(whole[rank], begun[rank][0] + rest[rank], strict=True):
            assert torch.equal(expected, step)


def check_contents():
    model = ddp()
    with attached(model) as attachment:
        empty = attachment.state_dict()
        assert empty["steps"] == 0 and list(empty["parameters"]) == [name for name, _ in model.module.named_parameters()]
        train(model, 2, dist.get_rank())
        state = attachment.state_dict()
        assert (state["steps"], state["rank"], state["world_size"]) == (2, dist.get_rank(), dist.get_world_size())
        for name, parameter in model.module.named_parameters():
            assert state["parameters"][name]["residual"].numel() == parameter.numel()
            assert state["parameters"][name]["steps"] == 2
        attachment.load_state_dict(empty)  # back to the beginning
        assert attachment.state_dict()["parameters"]["0.weight"]["residual"].numel() == 0


def check_refusals():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = ddp()
    with attached(model) as attachment:
        train(model, 2, rank)
        kept = attachment.state_dict()
        others = [None] * world_size
        dist.all_gather_object(others, kept)
        cases = [
            ({}, "no state"),
            (kept | {"format": 99}, "format"),
            (others[(rank + 1) % world_size], f"this is rank {rank}"),
            (kept | {"world_size": 7}, "all_ranks=True"),
            (kept | {"terms": kept["terms"] | {"seed": 3}}, "seed: it was 3, and is 0 now"),
            (kept | {"parameters": dict(list(kept["parameters"].items())[1:])}, "parameters"),
        ]
        for wrong, said in cases:
            with pytest.raises(thinwire.StateError, match=said):
                attachment.load_state_dict(wrong)
        now = attachment.state_dict()
        for name, its_state in kept["parameters"].items():
            assert torch.equal(its_state["residual"], now["parameters"][name]["residual"])
    for module, options, said in [
        (layers(), {"spec": "casq:bits=3"}, "another compressors: .*bits=2.*bits=3"),
        (layers(), {"rules": {"1.*": "none"}}, "compressors: '1.weight'"),
        (torch.nn.Sequential(*layers(), torch.nn.Linear(3, 3)), {}, "another parameters: '6.weight'"),
        (layers(), {"seed": 4}, "seed"),
    ]:
        with attached(ddp(module), **options) as other, pytest.raises(thinwire.StateError, match=said):
            other.load_state_dict(kept)


def mean_of_residuals(attachment):
    residual = torch.cat([state["residual"] for state in attachment.state_dict()["parameters"].values()])
    dist.all_reduce(residual)
    return residual / dist.get_world_size()


def run_three():
    model = ddp()
    with attached(model) as attachment:
        train(model, 3, dist.get_rank())
        return saved(attachment.state_dict(all_ranks=True)), mean_of_residuals(attachment)


def continue_with_fewer(state, mean):
    model = ddp()
    with attached(model) as attachment:
        attachment.load_state_dict(loaded(state))
        torch.testing.assert_close(mean_of_residuals(attachment), mean, rtol=1e-5, atol=1e-7)
        train(model, 2, dist.get_rank())
        return gradients(model)


def test_the_state_is_tensors_by_parameter():
    pool(2).run(check_contents)


def test_state_that_does_not_fit_is_refused_and_changes_nothing():
    pool(2).run(check_refusals)


@pytest.mark.parametrize("world_size", [1, 2])
def test_another_number_of_workers_keeps_the_mean_of_the_residuals(world_size):
    state, mean = pool(3).run(run_three)[0]
    first, *others = pool(world_size).run(continue_with_fewer, state, mean)
    assert all(torch.equal(first, other) for other in others)


GRADIVEQ = "gradiveq:dims=2,learn=2,lag=2,use=9,smallest=0"


def run_learning(steps):
    model = ddp()
    with attached(model, GRADIVEQ) as attachment:
        train(model, steps, dist.get_rank())
        return saved(attachment.state_dict(all_ranks=True))


def payload_of_first_compressed_step(state, steps):
    model = ddp()
    with attached(model, GRADIVEQ) as attachment:
        attachment.load_state_dict(loaded(state))
        train(model, 4 - steps, dist.get_rank())
        before = attachment.stats()["payload_bytes"]
        train(model, 1, dist.get_rank())
        return attachment.stats()["payload_bytes"] - before, 4 * sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_another_number_of_workers_keeps_what_owners_had_learnt(steps):
    state = pool(3).run(run_learning, steps)[0]
    compressed, plain = pool(2).run(payload_of_first_compressed_step, state, steps)[0]
    assert compressed < plain / 4
