"""``auto`` among workers that share hosts: it tries specs on two levels, and nothing is lost on the way from one to another."""

import copy

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import backward, batch, ddp, gradients
from test_torch_auto import CASQ, attached, leave_for_plain, run, unsent, until, wide
from test_torch_auto_rows import Words, go
from worker_pool import pool

EVEN = [0, 0, 1, 1]
LAYOUTS = [EVEN, [0, 1, 0, 1], [0, 0, 0, 1], [2, 2, 1, 0]]
BY_MEANS = {"plain": 3.0, CASQ: 1.0, "bf16": 2.0}


def check_decides_alike(hosts):
    """By the clock."""
    model = ddp(wide())
    with thinwire.torch.attach(model, "auto:quality=fast", hosts=hosts, timeout=30) as attachment:
        until(model, attachment, "decided")
        run(model, attachment, 3, first=60)
        figures, stats = attachment.stats()["auto"], attachment.stats()
        assert "none" in {prospect["spec"] for prospect in figures["prospects"]}  # on two levels, which plain is not
        assert stats["within_host_bytes"] > 0 or hosts.count(hosts[dist.get_rank()]) == 1
        return figures["spec"], figures["prospects"], gradients(model)


@pytest.mark.parametrize("hosts", LAYOUTS)
def test_all_workers_decide_alike(hosts):
    answers = pool(4).run(check_decides_alike, hosts)
    for answer in answers[1:]:
        assert answer[:2] == answers[0][:2]
        assert torch.equal(answer[2], answers[0][2])
    bits = {prospect["spec"]: prospect["bits"] for prospect in answers[0][1]}
    assert bits["none"] == 32 and bits["bf16"] == 16 and 2 <= bits["casq:bits=2,reduce=gather"] < 2.2


def check_nothing_is_lost(hosts, changes):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, alone = ddp(wide()), wide()
    attachment, script = attached(model, BY_MEANS, hosts=hosts)
    sent = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    got = torch.zeros_like(sent)
    for step in range(190 if changes else 45):
        if step == 80:  # plain is best from now on
            script.seconds = {"plain": 1.0, CASQ: 5.0}
        for each, total in ((alone, sent), (model, got)):
            each.zero_grad()
            backward(each, batch(step, rank))
            total += gradients(each)
    assert {"plain", CASQ, "bf16"} <= set(script.specs) and attachment.spec == ("plain" if changes else CASQ)
    left = unsent(attachment)
    total = sent - left
    dist.all_reduce(total)
    torch.testing.assert_close(world_size * got, total, rtol=1e-4, atol=2e-4)
    attachment.close()
    return float(left.norm())


@pytest.mark.parametrize("hosts, changes", [*((hosts, False) for hosts in LAYOUTS), (EVEN, True), ([0, 0, 0, 1], True)])
def test_residuals_go_along_whatever_is_tried(hosts, changes):
    assert changes or max(pool(4).run(check_nothing_is_lost, hosts, changes)) > 0


def check_rows(hosts):
    """By rows an embedding is cut elsewhere than between chunks: its residual, and that of what lies behind it, cannot stay where it is."""
    model, alone = ddp(Words()), Words()
    attachment, script = attached(model, BY_MEANS, hosts=hosts)
    got, sent = go(model, attachment, 50), go(alone, None, 50)
    assert attachment.spec == CASQ and attachment.rules == [("embedding.weight", f"s2:mode=exact/{CASQ}")]
    parts = {spec: reducer.parts for spec, reducer in attachment._auto._reducers.items()}
    assert (parts[CASQ] != parts["plain"]) == (hosts == EVEN)  # else the first worker of each host has all
    before = unsent(attachment)
    total = sent - before
    dist.all_reduce(total)
    torch.testing.assert_close(4 * got, total, rtol=1e-4, atol=2e-4)
    script.seconds = {"plain": 1.0, CASQ: 5.0}
    more, given = go(model, attachment, 140, 50), go(alone, None, 140, 50)
    assert attachment.spec == "plain"
    total = given + before - unsent(attachment)
    dist.all_reduce(total)
    torch.testing.assert_close(4 * more, total, rtol=1e-4, atol=2e-4)
    attachment.close()


@pytest.mark.parametrize("hosts", [EVEN, [0, 0, 0, 1]])
def test_of_embeddings_the_used_rows_travel(hosts):
    pool(4).run(check_rows, hosts)


def begin(phase):
    """A state of workers on two hosts, before the step in which what is owed goes out where the phase is "owing"."""
    model = ddp(wide())
    attachment, _ = attached(model, BY_MEANS, hosts=EVEN)
    until(model, attachment, "decided")
    run(model, attachment, 2, first=60)
    if phase == "owing":
        leave_for_plain(attachment)
        assert attachment._auto.owed
    state, own, left = attachment.state_dict(all_ranks=True), attachment.state_dict(all_ranks=False), unsent(attachment)
    run(model, attachment, 3, first=62)
    attachment.close()
    return model.module.state_dict(), state, own, left, gradients(model)


def go_on(hosts, weights, states):
    module = wide()
    module.load_state_dict(weights)
    model = ddp(module)
    attachment, _ = attached(model, BY_MEANS, hosts=hosts)
    attachment.load_state_dict(states if isinstance(states, dict) else states[dist.get_rank()])
    left, spec = unsent(attachment), attachment.spec
    run(model, attachment, 3, first=62)
    attachment.close()
    return spec, left, gradients(model)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("phase", ["decided", "owing"])
def test_a_saved_state_resumes_with_the_same_bits(phase, own):
    begun = pool(4).run(begin, phase)
    states = [answer[2] for answer in begun] if own else begun[0][1]
    for (_, _, _, left, mean), (spec, loaded, again) in zip(begun, pool(4).run(go_on, EVEN, begun[0][0], copy.deepcopy(states)), strict=True):
        assert spec == (CASQ if phase == "decided" else "plain")
        assert torch.equal(loaded, left) and torch.equal(again, mean)


@pytest.mark.parametrize("hosts, workers", [("flat", 4), ([0, 0, 0, 1], 4), ([0, 1, 1], 3)])
@pytest.mark.parametrize("phase", ["decided", "owing"])
def test_on_other_hosts_what_is_still_to_be_sent_is_the_same(phase, hosts, workers):
    begun = pool(4).run(begin, phase)
    mean = sum(answer[3] for answer in begun) / 4
    resumed = pool(workers).run(go_on, hosts, begun[0][0], begun[0][1])
    assert mean.norm() > 0
    torch.testing.assert_close(sum(left for _, left, _ in resumed) / workers, mean, rtol=1e-5, atol=1e-8)
