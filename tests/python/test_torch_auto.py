"""``auto`` at work in DDP, where a script says how long steps take: what it does to gradients, residuals, checkpoints and failures."""

import copy
import dataclasses
import logging

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import WIDTH, Mixed, backward, batch, ddp, gradients, layers, train
from test_torch_hook import OPTIONS
from test_torch_types import Wide
from thinwire import ArgumentError, StateError
from torch import nn
from worker_pool import pool

CASQ = "casq:bits=4,reduce=scatter"
UNDECIDED = ("watching", "trying")


def wide(seed=0):
    """With matrices that are worth compressing, in several buckets."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 300), nn.Linear(300, 100), nn.Linear(100, WIDTH))


class Script:
    """Steps of an attachment take, as far as its search and its model know, what ``seconds`` says for a spec, and others too long; and the
    link stays as it was measured, however busy the machine was at that moment."""

    def __init__(self, attachment, seconds):
        self.attachment, self.seconds = attachment, seconds
        self.specs = []
        search_on = attachment._auto.search_on

        def played(step):
            self.specs.append(attachment.spec)
            if step.seconds is not None:
                step.seconds = step.computed = self.taken_by(attachment.spec)
            search_on(step)

        attachment._auto.search_on = played
        prospects = attachment._auto._prospects
        self.priced, prospects._priced = prospects._priced, self.predicted
        prospects.probe = attachment._auto._search._probe = lambda: 1.0

    def predicted(self, spec, *exchanged):
        """Used rows alone take less."""
        prospect = self.priced(spec, *exchanged)
        return dataclasses.replace(prospect, seconds=self.taken_by(spec) * (0.8 if prospect.by_rows else 1))

    def taken_by(self, spec):
        return self.seconds.get(spec, 1e6)


def attached(model, seconds=None, spec="auto", **options):
    attachment = thinwire.torch.attach(model, spec, timeout=30, **options)
    return attachment, Script(attachment, {"plain": 3.0, CASQ: 1.0, "bf16": 2.0} if seconds is None else seconds)


def run(model, attachment, steps, first=0):
    for step in range(first, first + steps):
        model.zero_grad()
        backward(model, batch(step, dist.get_rank()))
    return first + steps


def unsent(attachment):
    """What this worker has still to send, as a share of the sum of all workers' gradients, flat."""
    hosts, whole = attachment._reducer.hosts, []
    for name, saved in attachment.state_dict(all_ranks=False)["parameters"].items():
        first, count = saved["part"]
        residual = torch.zeros(attachment._terms["parameters"][name]).flatten().double()
        if saved["residual"].numel():
            residual[first : first + count] = saved["residual"]
        whole.append(residual * (len(hosts) / len(set(hosts)) if hosts else 1))
    return torch.cat(whole)


def leave_for_plain(attachment):
    """As if plain had been found to be best, whatever the script says."""
    before = attachment.spec
    attachment._settle()
    attachment._last_step = None  # of which the search is not told any more
    attachment._auto._search.keep("plain")
    attachment._auto._leave(before)
    attachment._reducer = attachment._auto.reducer


def until(model, attachment, phase, first=0, limit=60):
    step = first
    while attachment.stats()["auto"]["phase"] != phase:
        assert step < first + limit, attachment.stats()["auto"]
        step = run(model, attachment, 1, step)
    return step


def check_decides_alike():
    ours, plain = ddp(wide()), ddp(wide())
    attachment, script = attached(ours)
    for mine, theirs in zip(train(ours, 8, dist.get_rank()), train(plain, 8, dist.get_rank()), strict=True):
        # While it watches, gradients are plain DDP's: to the bit, but that DDP multiplies by 1/3 where PyTorch's hook divides by 3.
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0 if dist.get_world_size() == 2 else 1e-8)
    assert attachment.spec == "plain" and attachment.stats()["ratio"] == 1
    until(ours, attachment, "decided", first=8)
    figures = attachment.stats()["auto"]
    assert figures["spec"] == attachment.spec
    assert {"seconds", "error", "bits", "spec"} <= figures["prospects"][0].keys()
    assert all(prospect["is_allowed"] == (prospect["error"] <= 0.3) for prospect in figures["prospects"])
    best = min(figures["seconds"], key=figures["seconds"].get)
    assert attachment.spec == best != "plain"
    assert attachment.spec in str(attachment) and "predicted" in str(attachment)
    assert set(attachment.compressors.values()) == {thinwire.canonical_spec(attachment.spec), "none"}
    before = attachment.stats()
    run(ours, attachment, 10, first=60)
    after = attachment.stats()
    assert after["traffic_bytes"] - before["traffic_bytes"] < 0.6 * (after["plain_bytes"] - before["plain_bytes"])
    attachment.close()
    return figures["spec"], figures["prospects"], script.specs, gradients(ours)


@pytest.mark.parametrize("workers", [2, 3])
def test_all_workers_decide_alike(workers):
    answers = pool(workers).run(check_decides_alike)
    for spec, prospects, specs, mean in answers[1:]:
        assert (spec, prospects, specs) == answers[0][:3]
        assert torch.equal(mean, answers[0][3])


def check_nothing_is_lost(changes, scaler):
    """Over all steps and workers: gradients = workers * means + residuals, through all changes of the spec."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, alone = ddp(wide()), wide()
    attachment, script = attached(model, scaler=FixedScale() if scaler else None)
    scale = 8.0 if scaler else 1.0
    sent = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    got = torch.zeros_like(sent)
    for step in range(190 if changes else 45):
        if step == 80:  # plain is best from now on
            script.seconds = {"plain": 1.0, CASQ: 5.0}
        alone.zero_grad()
        backward(alone, batch(step, rank))
        sent += gradients(alone)
        model.zero_grad()
        (model(batch(step, rank)).float().square().mean() * scale).backward()
        got += gradients(model) / scale
    specs = set(script.specs)
    assert {"plain", attachment.spec} <= specs and len(specs) >= 3
    if changes:
        assert attachment.stats()["auto"]["searches"] == 2 and attachment.spec == "plain"
    left = unsent(attachment)
    total = sent - left
    dist.all_reduce(total)
    torch.testing.assert_close(world_size * got, total, rtol=1e-4, atol=2e-4)
    attachment.close()
    return float(left.norm()), sorted(specs)


class FixedScale:
    def get_scale(self):
        return 8.0


@pytest.mark.parametrize("changes, scaler", [(False, False), (True, False), (False, True)])
def test_residuals_go_along_whatever_is_tried(changes, scaler):
    for left, specs in pool(2).run(check_nothing_is_lost, changes, scaler):
        assert CASQ in specs and "bf16" in specs
        assert changes or left > 0


def check_owed_goes_out():
    """From a spec with residuals to plain: what is owed is in the next means, and then nothing is left."""
    model = ddp(wide())
    attachment, _ = attached(model)
    until(model, attachment, "decided")
    run(model, attachment, 3, first=60)
    assert attachment.spec == CASQ
    leave_for_plain(attachment)
    owed = {name: state["residual"].clone() for name, state in attachment.state_dict(all_ranks=False)["parameters"].items()}
    assert owed["0.weight"].norm() > 0
    model.zero_grad()
    expected, alone = {}, wide()
    alone.load_state_dict(model.module.state_dict())
    backward(alone, batch(70, dist.get_rank()))
    for name, parameter in alone.named_parameters():
        expected[name] = parameter.grad.clone()
        if owed[name].numel():
            expected[name] += owed[name].view_as(expected[name])
        dist.all_reduce(expected[name])
    run(model, attachment, 1, first=70)
    for name, parameter in model.module.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name] / dist.get_world_size(), rtol=1e-4, atol=1e-6)
    assert not any(state["residual"].numel() for state in attachment.state_dict(all_ranks=False)["parameters"].values())
    run(model, attachment, 1, first=71)
    assert not attachment._auto.owed and attachment._auto.is_plain
    attachment.close()


def test_what_is_owed_goes_out_with_the_next_step():
    pool(2).run(check_owed_goes_out)


def check_state(phase, all_ranks):
    rank = dist.get_rank()
    model = ddp(wide())
    attachment, _ = attached(model)
    step = until(model, attachment, phase)
    step = run(model, attachment, 2, step)
    state, before = attachment.state_dict(all_ranks=all_ranks), attachment.spec
    residuals = {name: saved["residual"].clone() for name, saved in attachment.state_dict(all_ranks=False)["parameters"].items()}
    again = ddp(copy.deepcopy(model.module))
    resumed, _ = attached(again)
    resumed.load_state_dict(state)
    loaded = {name: saved["residual"] for name, saved in resumed.state_dict(all_ranks=False)["parameters"].items()}
    for name, residual in residuals.items():
        assert torch.equal(loaded[name] if loaded[name].numel() else torch.zeros_like(residual), residual)
    if phase == "decided":
        assert resumed.spec == before and resumed.stats()["auto"]["phase"] == "decided"
        run(model, attachment, 3, step)
        run(again, resumed, 3, step)
        assert torch.equal(gradients(model), gradients(again))  # the same bits
    else:
        assert resumed.spec == "plain" and resumed.stats()["auto"]["phase"] == "watching"
        until(again, resumed, "decided", step)
    fixed = thinwire.torch.attach(ddp(copy.deepcopy(model.module)), CASQ)
    with pytest.raises(StateError, match="compressors"):
        fixed.load_state_dict(state)
    other = thinwire.torch.attach(ddp(copy.deepcopy(model.module)), "auto")
    with pytest.raises(StateError):
        other.load_state_dict(fixed.state_dict(all_ranks=all_ranks))
    for each in (attachment, resumed, fixed, other):
        each.close()
    return rank


@pytest.mark.parametrize("phase, all_ranks", [("decided", True), ("decided", False), ("trying", True), ("watching", False)])
def test_a_saved_state_resumes_with_the_decision(phase, all_ranks):
    pool(2).run(check_state, phase, all_ranks)


def check_failed_step():
    """Infinity while it watches is plain DDP's affair; while it compresses the step fails as ever, and the search goes on."""
    model = ddp(wide())
    attachment, _ = attached(model)
    run(model, attachment, 2)
    model.zero_grad()
    (model(batch(2, 0)).sum() * float("inf")).backward()
    assert attachment.stats()["failed_steps"] == 0
    until(model, attachment, "trying", first=3)
    model.zero_grad()
    (model(batch(2, 0)).sum() * float("nan")).backward()
    assert attachment.stats()["failed_steps"] == 1
    step = until(model, attachment, "decided", first=20)
    assert attachment.spec == CASQ
    run(model, attachment, 1, step)
    assert gradients(model).isfinite().all()
    attachment.close()


def test_steps_that_fail_do_not_end_the_search():
    pool(2).run(check_failed_step)


def check_failing_sample():
    """As under a loss scale that is too large at first, on one worker."""
    model = ddp(wide())
    attachment, script = attached(model)
    for step in range(15):
        model.zero_grad()
        (model(batch(step, dist.get_rank())).sum() * (float("inf") if dist.get_rank() == 0 and step > 4 else 1)).backward()
    assert set(script.specs) == {"plain"} and attachment.stats()["auto"]["phase"] == "watching"
    until(model, attachment, "decided", first=15)
    assert attachment.spec == CASQ
    attachment.close()


def test_a_sample_that_is_not_finite_is_taken_again():
    pool(2).run(check_failing_sample)


def check_options(options):
    ours, plain = ddp(wide(), **options), ddp(wide(), **options)
    attachment, _ = attached(ours)
    for mine, theirs in zip(train(ours, 8, dist.get_rank()), train(plain, 8, dist.get_rank()), strict=True):
        assert torch.equal(mine, theirs)
    until(ours, attachment, "decided", first=8)
    assert attachment.spec == CASQ
    for mine, theirs in zip(train(ours, 3, dist.get_rank(), first=60), train(plain, 3, dist.get_rank(), first=60), strict=True):
        assert 0 < (mine - theirs).norm() < 3 * theirs.norm()
    attachment.close()


@pytest.mark.parametrize("options", OPTIONS)
def test_whatever_ddp_does(options):
    pool(2).run(check_options, options)


def check_mixed_types():
    model = ddp(Mixed())
    attachment, _ = attached(model)
    until(model, attachment, "decided")
    run(model, attachment, 2, 60)
    attachment.close()
    wide_types, plain = ddp(Wide()), ddp(Wide())  # a double and a complex parameter
    attachment, _ = attached(wide_types)
    for mine, theirs in zip(train(wide_types, 8, dist.get_rank()), train(plain, 8, dist.get_rank()), strict=True):
        assert torch.equal(mine, theirs)
    attachment.close()
    doubles = ddp(layers(torch.float64))
    attachment, _ = attached(doubles)
    for step in range(12):
        doubles.zero_grad()
        backward(doubles, batch(step, dist.get_rank(), torch.float64))
    assert attachment.spec == "plain" and attachment.stats()["auto"]["phase"] == "decided"
    attachment.close()


def test_types_that_no_compressor_takes_are_left_alone():
    pool(2).run(check_mixed_types)


def check_sparse(rules):
    def module():
        torch.manual_seed(0)
        return nn.ModuleDict({"embedding": nn.Embedding(500, WIDTH, sparse=True), "rest": wide()})

    def loss(model, step):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        return model.module["rest"](model.module["embedding"](torch.randint(500, (8,), generator=generator))).square().mean()

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = module()

        def forward(self, step):
            generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
            return self.parts["rest"](self.parts["embedding"](torch.randint(500, (8,), generator=generator))).square().mean()

    model, plain = ddp(Whole()), ddp(Whole())
    attachment, script = attached(model, rules=rules)
    for step in range(50):
        for each in (model, plain):
            each.zero_grad()
            each(step).backward()
        if script.specs and attachment.spec == "plain":
            mine, theirs = (each.module.parts["embedding"].weight.grad.to_dense() for each in (model, plain))
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)
    assert attachment.stats()["auto"]["phase"] == "decided" and attachment.spec != "plain"
    attachment.close()


@pytest.mark.parametrize("rules", [None, {"*embedding*": "s2"}])
def test_sparse_gradients(rules):
    pool(2).run(check_sparse, rules)


def check_lossless():
    model = ddp(wide())
    attachment, script = attached(model, spec="auto:quality=lossless")
    run(model, attachment, 60)
    assert set(script.specs) == {"plain"} and attachment.stats()["auto"]["phase"] == "decided"
    attachment.close()
    attachment, script = attached(model, {"plain": 3.0, "none": 2.0}, spec="auto:quality=lossless", rules={"0.weight": "s2"})
    run(model, attachment, 60)
    assert {"plain", "none"} == set(script.specs)  # what the rules say, and nothing else
    attachment.close()


def test_lossless_compresses_by_rules_alone():
    pool(2).run(check_lossless)


def check_refusals():
    model = ddp(wide())
    for spec, said in [("auto:quality=best", "lossless, safe, fast"), ("auto:fast", "quality="), ("auto:bits=2", "allowed")]:
        with pytest.raises(ArgumentError, match=said):
            thinwire.torch.attach(model, spec)
    with pytest.raises(ArgumentError, match="matches no parameter"):
        thinwire.torch.attach(model, "auto", rules={"nobody": "none"})
    with pytest.raises(ArgumentError, match="quality|compressors|spec"):
        thinwire.torch.attach(model, "auto" if dist.get_rank() == 0 else "auto:quality=fast")
    attachment = thinwire.torch.attach(model)  # nothing was left behind
    assert attachment.stats()["auto"]["quality"] == "safe"
    attachment.close()


def test_refuses_what_it_does_not_know():
    pool(2).run(check_refusals)


def check_saving():
    model = ddp(wide())
    attachment, _ = attached(model)
    until(model, attachment, "decided")
    run(model, attachment, 2, 60)
    state = attachment.state_dict(all_ranks=True)
    attachment.close()
    return attachment.spec, state


def check_alone(spec, state):
    """What it cannot use it keeps."""
    model = ddp(wide())
    attachment = thinwire.torch.attach(model, "auto")
    run(model, attachment, 60)
    assert attachment.stats()["steps"] == 60 and attachment.spec == "plain"
    assert "auto" in str(attachment)
    attachment.load_state_dict(state)
    run(model, attachment, 30)
    again = attachment.state_dict()
    assert attachment.spec == spec == again["auto"]["spec"]
    means = [sum(rank["parameters"]["0.weight"]["residual"] for rank in state["ranks"]) / 2, again["parameters"]["0.weight"]["residual"]]
    torch.testing.assert_close(*means)
    attachment.close()


def test_a_worker_alone_is_left_alone():
    saved = pool(2).run(check_saving)
    pool(1).run(check_alone, *saved[0])


def check_log():
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger("thinwire")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        model = ddp(wide())
        attachment, _ = attached(model)
        until(model, attachment, "decided")
        attachment.close()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    return records


def test_rank_0_logs_what_it_decided():
    first, second = pool(2).run(check_log)
    assert len(first) == 1 and CASQ in first[0] and "decided" in first[0]
    assert second == []
