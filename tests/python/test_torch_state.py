"""What an attachment remembers: saved, loaded, refused, and handed to another number of workers."""

import io
import tempfile
from unittest import mock

import pytest
import thinwire
import thinwire.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from small_models import backward, batch, ddp, gradients, layers, train
from worker_pool import WorkerPool, pool

SPEC = "casq:bits=2,retrain=3"


def attached(model, spec=SPEC, **options):
    # All of it compressed: from three workers on, floats that the engine sums depend on their place in DDP's buckets.
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


def run_whole(steps, spec=SPEC):
    model = ddp()
    with attached(model, spec):
        return train(model, steps, dist.get_rank(), optimiser_of(model))


def run_first(steps, all_ranks, spec=SPEC):
    model = ddp()
    optimiser = optimiser_of(model)
    with attached(model, spec) as attachment:
        taken = train(model, steps, dist.get_rank(), optimiser)
        return taken, saved([model.module.state_dict(), optimiser.state_dict(), attachment.state_dict(all_ranks=all_ranks)])


def run_rest(steps, first, checkpoints, spec=SPEC):
    rank = dist.get_rank()
    weights, momentum, state = loaded(checkpoints[rank])
    module = layers(seed=99)
    module.load_state_dict(weights)
    model = ddp(module)
    optimiser = optimiser_of(model)
    optimiser.load_state_dict(momentum)
    with attached(model, spec) as attachment:
        attachment.load_state_dict(state)
        assert attachment.state_dict(all_ranks=False)["steps"] == first
        taken = train(model, steps, rank, optimiser, first=first)
        assert attachment.stats()["steps"] == steps  # of this run, as its bytes are
        assert attachment.state_dict(all_ranks=False)["steps"] == first + steps
        return taken


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


@pytest.mark.parametrize("world_size", [2, 3])
def test_sums_of_the_engine_continue_within_their_last_bits(world_size):
    """DDP orders its buckets anew after the first step, and so the engine's sums, unless there are but two terms."""
    whole = pool(world_size).run(run_whole, 4, "none")[0]
    begun = pool(world_size).run(run_first, 2, True, "none")
    fresh = WorkerPool(world_size)
    rest = fresh.run(run_rest, 2, 2, [checkpoint for _, checkpoint in begun], "none")
    assert fresh.close() == [0] * world_size
    for expected, step in zip(whole, begun[0][0] + rest[0], strict=True):
        torch.testing.assert_close(expected, step, rtol=0 if world_size == 2 else 1e-4, atol=0 if world_size == 2 else 1e-7)


def check_contents():
    model = ddp()
    with attached(model) as attachment:
        empty = attachment.state_dict(all_ranks=False)
        assert empty["steps"] == 0 and list(empty["parameters"]) == [name for name, _ in model.module.named_parameters()]
        train(model, 2, dist.get_rank())
        state = attachment.state_dict(all_ranks=False)
        assert (state["steps"], state["rank"], state["world_size"]) == (2, dist.get_rank(), dist.get_world_size())
        for name, parameter in model.module.named_parameters():
            assert state["parameters"][name]["residual"].numel() == parameter.numel()
            assert state["parameters"][name]["steps"] == 2
        attachment.load_state_dict(empty)  # back to the beginning
        assert attachment.state_dict(all_ranks=False)["parameters"]["0.weight"]["residual"].numel() == 0


def check_refusals():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = ddp()
    with attached(model) as attachment:
        train(model, 2, rank)
        kept = attachment.state_dict(all_ranks=False)
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
        now = attachment.state_dict(all_ranks=False)
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


def check_who_saves():
    """A part of the state is never taken for the whole."""
    model = ddp()
    with attached(model) as attachment:
        train(model, 2, dist.get_rank())
        if dist.get_rank() == 0:  # as most scripts save; nobody waits for the others
            with pytest.raises(thinwire.StateError, match="all_ranks=True. on all workers"):
                attachment.state_dict()
        with pytest.raises(thinwire.StateError, match="attachment.all_ranks"), tempfile.TemporaryDirectory() as folder:
            dcp.save({"thinwire": attachment}, checkpoint_id=folder)
        backward(model, batch(2, dist.get_rank()))
        for wrong in ({}, {"all_ranks": 3}, attachment.state_dict(all_ranks=True)):
            with pytest.raises(thinwire.StateError, match="no state of all ranks"):
                attachment.all_ranks.load_state_dict(wrong)


def check_receiver():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = ddp()
    with attached(model) as attachment:
        train(model, 2, rank)
        of_all = saved(attachment.state_dict(all_ranks=True))
        for to in range(world_size):
            with mock.patch.object(dist, "all_gather_object", side_effect=AssertionError("the state of all on every worker")):
                state = attachment.state_dict(all_ranks=True, to=to)
            assert saved(state) == of_all if rank == to else state is None
        for wrong in (-1, world_size, True, "0", 0.0):
            with pytest.raises(thinwire.ArgumentError, match=f"to = {wrong!r}; allowed: a rank .* from 0 to {world_size - 1}, or None"):
                attachment.state_dict(all_ranks=True, to=wrong)
        for all_ranks in (None, False):
            with pytest.raises(thinwire.ArgumentError, match=f"to = 0 with all_ranks = {all_ranks}; allowed: with all_ranks=True"):
                attachment.state_dict(all_ranks=all_ranks, to=0)


def check_receiver_in_a_part_of_the_world():
    """Ranks are those of the model's group, whichever the workers have in the world."""
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return
    model = ddp(process_group=group)
    with attached(model) as attachment:
        train(model, 2, dist.get_rank())
        state = attachment.state_dict(all_ranks=True, to=1)
        assert (state is None) == (dist.get_rank() == 1)
        if state is not None:
            assert [one["rank"] for one in state["ranks"]] == [0, 1]
            attachment.load_state_dict(state)


def save_distributed(folder):
    model = ddp()
    with attached(model) as attachment:
        train(model, 3, dist.get_rank())
        dcp.save({"thinwire": attachment.all_ranks}, checkpoint_id=folder)
        return mean_of_residuals(attachment), attachment.state_dict(all_ranks=False)


def load_distributed(folder, mean, states):
    """Into an attachment that has no residuals yet."""
    model = ddp()
    with attached(model) as attachment:
        dcp.load({"thinwire": attachment.all_ranks}, checkpoint_id=folder)
        assert attachment.state_dict(all_ranks=False)["steps"] == 3
        torch.testing.assert_close(mean_of_residuals(attachment), mean, rtol=1e-5, atol=1e-7)
        if len(states) == dist.get_world_size():
            own = attachment.state_dict(all_ranks=False)["parameters"]
            for name, row in states[dist.get_rank()]["parameters"].items():
                assert torch.equal(row["residual"], own[name]["residual"])
                assert torch.equal(row["memory"], own[name]["memory"])
        backward(model, batch(3, dist.get_rank()))


def mean_of_residuals(attachment):
    residual = torch.cat([state["residual"] for state in attachment.state_dict(all_ranks=False)["parameters"].values()])
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


def test_one_workers_state_is_never_taken_for_the_whole():
    pool(2).run(check_who_saves)


@pytest.mark.parametrize("world_size", [1, 3])
def test_one_worker_alone_may_get_the_state_of_all(world_size):
    pool(world_size).run(check_receiver)


def test_who_gets_the_state_is_a_rank_of_the_models_group():
    workers = WorkerPool(3)  # its own, since a group that some workers are not in cannot be taken back
    workers.run(check_receiver_in_a_part_of_the_world)
    assert workers.close() == [0, 0, 0]


@pytest.mark.parametrize("world_size", [3, 2, 1])
def test_a_distributed_checkpoint_loads_into_any_number_of_workers(tmp_path, world_size):
    means, states = zip(*pool(3).run(save_distributed, tmp_path), strict=True)
    pool(world_size).run(load_distributed, tmp_path, means[0], states)


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
