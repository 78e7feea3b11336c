"""Workers that share hosts: attach(hosts=...) on two levels, its means, states, failures and refusals."""

import os
import signal
from unittest import mock

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import Mixed, backward, batch, ddp, gradients, layers, train
from thinwire import ArgumentError, PeerError, StateError, _native
from torch.nn.parallel import DistributedDataParallel
from worker_pool import WorkerPool, pool

EVEN = [0, 0, 1, 1]
LAYOUTS = [EVEN, [0, 1, 0, 1], [0, 0, 0, 1], [2, 2, 1, 0]]
SPEC = "casq:bits=4,retrain=3"


def attached(model, spec=SPEC, **options):
    return thinwire.torch.attach(model, spec, **({"timeout": 30, "small_uncompressed": False, "hosts": EVEN, "lanes": 2} | options))


def run_steps(spec, hosts, steps=3, **options):
    model = ddp()
    with attached(model, spec, hosts=hosts, **options) as attachment:
        taken = train(model, steps, dist.get_rank())
        kept = sum(row["residual"].numel() for row in attachment.state_dict(all_ranks=False)["parameters"].values())
        return taken, kept, attachment.stats(), str(attachment)


def run_plain(steps=3):
    return train(ddp(), steps, dist.get_rank())


@pytest.mark.parametrize("hosts", LAYOUTS)
def test_uncompressed_it_is_plain_ddp_to_rounding(hosts):
    plain = pool(4).run(run_plain)
    for rank, (taken, _, stats, _) in enumerate(pool(4).run(run_steps, "none", hosts)):
        for expected, gradient in zip(plain[rank], taken, strict=True):
            torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)
        assert (stats["within_host_bytes"] > 0) == (hosts.count(hosts[rank]) > 1)


@pytest.mark.parametrize("hosts", LAYOUTS)
@pytest.mark.parametrize("spec", [SPEC, "casq:bits=4,reduce=scatter", "casq:rate=2", "powersgd", "topk", "gradiveq:smallest=16,slice=48,ratio=4,feedback=on"])
def test_all_workers_get_the_same_bits_and_keep_their_parts_residuals(spec, hosts):
    outcomes = pool(4).run(run_steps, spec, hosts)
    for taken, *_ in outcomes[1:]:
        assert all(torch.equal(own, first) for own, first in zip(taken, outcomes[0][0], strict=True))
    elements = sum(parameter.numel() for parameter in layers().parameters())
    assert sum(kept for _, kept, _, _ in outcomes) == len(set(hosts)) * elements


def test_what_leaves_a_host_is_a_part_for_each_worker():
    def of_all(hosts, name):
        return sum(stats[name] for _, _, stats, _ in pool(4).run(run_steps, "qsgd:bits=4,reduce=gather", hosts))

    # Half of it, to one other host instead of three other workers.
    assert of_all(EVEN, "payload_bytes") == pytest.approx(of_all("flat", "payload_bytes") / 2, rel=0.05)
    assert of_all(EVEN, "traffic_bytes") == pytest.approx(of_all("flat", "traffic_bytes") / 6, rel=0.05)
    assert of_all("flat", "within_host_bytes") == 0
    assert "on its host" in pool(4).run(run_steps, SPEC, EVEN)[0][3]


def find_by_identity():
    def attach_and_count(identity):
        with mock.patch.object(_native, "host_identity", lambda: identity):
            model = ddp()
            with attached(model, hosts="auto") as attachment:
                backward(model, batch(0, dist.get_rank()))
                return attachment._reducer.hosts

    rank = dist.get_rank()
    return attach_and_count(f"machine {rank % 2}"), attach_and_count("one machine"), attach_and_count(f"machine {rank}")


def test_auto_finds_the_hosts_and_makes_no_levels_of_one_machine_or_of_single_workers():
    assert pool(4).run(find_by_identity) == [([0, 1, 0, 1], [], [])] * 4


def run_mixed():
    model = ddp(Mixed())
    with attached(model, "casq:bits=8"):
        backward(model, batch(0, dist.get_rank()))
        compressed = gradients(model)
    plain = ddp(Mixed())
    backward(plain, batch(0, dist.get_rank()))
    expected, known = gradients(plain), ~gradients(plain).isnan()
    return compressed, (compressed - expected)[known].norm() / expected[known].norm()


def test_parameters_of_all_types():
    outcomes = pool(4).run(run_mixed)
    for compressed, error in outcomes:
        assert torch.equal(compressed.nan_to_num(), outcomes[0][0].nan_to_num())
        assert error < 0.05


def run_with_nan(scaled, bad_step=1):
    """The gradients of three steps, in one of which a worker's last layer is NaN."""
    model = ddp()
    scaler = torch.amp.GradScaler("cpu") if scaled else None
    taken = []
    with attached(model, scaler=scaler) as attachment:
        for step in range(3):
            inputs = batch(step, dist.get_rank())
            if step == bad_step and dist.get_rank() == 2:
                inputs[0, 0] = torch.nan
            model.zero_grad()
            before = attachment.state_dict(all_ranks=False)["parameters"]
            backward(model, inputs)
            after = attachment.state_dict(all_ranks=False)["parameters"]
            taken.append(gradients(model))
            if scaled and step == bad_step:
                assert all(torch.equal(after[name]["residual"], before[name]["residual"]) for name in before if before[name]["residual"].numel())
        return taken, attachment.stats()["failed_steps"]


@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_that_is_not_finite_fails_on_all_hosts(scaled):
    outcomes = pool(4).run(run_with_nan, scaled)
    for taken, failed in outcomes:
        assert failed == 1
        assert taken[1].isnan().any() and not taken[0].isnan().any() and not taken[2].isnan().any()
        assert all(torch.equal(own.nan_to_num(), first.nan_to_num()) for own, first in zip(taken, outcomes[0][0], strict=True))


def begin(hosts, steps):
    model = ddp()
    with attached(model, hosts=hosts) as attachment:
        taken = train(model, steps, dist.get_rank())
        return taken, model.module.state_dict(), attachment.state_dict(all_ranks=True), attachment.state_dict(all_ranks=False)


def go_on(hosts, weights, state, first, steps):
    module = layers(seed=7)
    module.load_state_dict(weights)
    model = ddp(module)
    with attached(model, hosts=hosts) as attachment:
        attachment.load_state_dict(state)
        kept = attachment.state_dict(all_ranks=True)
        return train(model, steps, dist.get_rank(), first=first), kept


def mean_residual(state, name):
    """What the workers have still to send, as the mean over all."""
    total = 0
    for one in state["ranks"]:
        row = one["parameters"][name]
        first, count = row["part"]
        whole = torch.zeros(torch.Size(state["ranks"][0]["terms"]["parameters"][name]).numel(), dtype=torch.float64)
        whole[first : first + count] = row["residual"] if row["residual"].numel() else 0
        hosts = one["hosts"]
        total = total + whole * (len(hosts) / len(set(hosts)) if hosts else 1)
    return total / len(state["ranks"])


@pytest.mark.parametrize("hosts", LAYOUTS)
def test_a_resumed_training_continues_with_the_same_bits(hosts):
    whole = pool(4).run(begin, hosts, 6)
    half = pool(4).run(begin, hosts, 3)
    rest = pool(4).run(go_on, hosts, half[0][1], half[0][2], 3, 3)
    for (all_steps, *_), (steps, _) in zip(whole, rest, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(all_steps[3:], steps, strict=True))


@pytest.mark.parametrize(("saved", "loaded", "workers"), [(EVEN, "flat", 4), ("flat", EVEN, 4), (EVEN, [0, 0, 0, 1], 4), (EVEN, [0, 1, 1], 3)])
def test_on_other_hosts_what_is_still_to_be_sent_is_the_same(saved, loaded, workers):
    _, weights, state, _ = pool(4).run(begin, saved, 3)[0]
    _, kept = pool(workers).run(go_on, loaded, weights, state, 3, 2)[0]
    assert any(mean_residual(state, name).norm() > 0 for name in state["ranks"][0]["parameters"])
    for name in state["ranks"][0]["parameters"]:
        before, after = mean_residual(state, name), mean_residual(kept, name)
        torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-9)


def load_own(hosts, states):
    with attached(ddp(), hosts=hosts) as attachment, pytest.raises(StateError, match="all_ranks=True"):
        attachment.load_state_dict(states[dist.get_rank()])


def test_one_workers_state_serves_the_same_hosts_alone():
    states = [outcome[3] for outcome in pool(4).run(begin, EVEN, 1)]
    pool(4).run(load_own, [0, 0, 0, 1], states)
    pool(4).run(load_own, "flat", states)


def refused(hosts, said, error=ArgumentError):
    own = hosts[dist.get_rank()] if isinstance(hosts, dict) else hosts
    with pytest.raises(error, match=said):
        attached(ddp(), hosts=own)


@pytest.mark.parametrize("hosts", ["two", [0, 1], [0, 0, 1, -1], [0, 0, 1, 0.5], None])
def test_hosts_that_are_none_are_refused(hosts):
    pool(4).run(refused, hosts, "allowed: 'flat', 'auto', or a list with a number for each of the 4 workers")


def test_workers_that_were_told_of_different_hosts_are_refused():
    pool(4).run(refused, dict(enumerate([EVEN, EVEN, EVEN, "flat"])), "the workers do not agree: .*hosts")


def run_in_a_part_of_the_world():
    group = dist.new_group([0, 1, 3])
    if dist.get_rank() == 2:
        return None
    model = DistributedDataParallel(layers(), process_group=group)
    with attached(model, "none", hosts=[0, 0, 1]):
        backward(model, batch(0, dist.get_rank()))
        return gradients(model)


def test_a_part_of_the_world():
    first, second, _, last = pool(4).run(run_in_a_part_of_the_world)
    assert torch.equal(first, second) and torch.equal(first, last)


def lose_a_worker(bad_rank, how):
    model = ddp()
    attachment = attached(model, timeout=5)
    train(model, 3, dist.get_rank())  # until DDP has rebuilt its buckets, over a group of its own
    dist.barrier()
    if dist.get_rank() == bad_rank:
        os.kill(os.getpid(), how)
    with pytest.raises(PeerError, match="another worker"):
        for step in range(100):
            backward(model, batch(step, dist.get_rank()))
    attachment.close()


@pytest.mark.parametrize("bad_rank", [0, 3])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_ends_those_of_its_host_and_of_the_other(how, bad_rank):
    own_pool = WorkerPool(4)
    try:
        own_pool.begin(lose_a_worker, bad_rank, how)
        for rank in {0, 1, 2, 3} - {bad_rank}:
            _, failure = own_pool.answer(rank, limit=60)
            assert failure is None, failure
    finally:
        own_pool.kill()
