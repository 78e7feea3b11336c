"""``auto`` finds embeddings, of which few rows are used, and sends these alone."""

import copy

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import WIDTH, ddp
from test_torch_auto import CASQ, attached, unsent, wide
from torch import nn
from worker_pool import pool


class Words(nn.Module):
    """An embedding, of which a worker uses eight rows in a step, before layers that use all of theirs."""

    def __init__(self, vocabulary=3000, sparse=False):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.rest = nn.Embedding(vocabulary, WIDTH, sparse=sparse), wide()

    def forward(self, step):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        return self.rest(self.embedding(torch.randint(self.embedding.num_embeddings, (8,), generator=generator))).square().mean()


def go(model, attachment, steps, first=0):
    """Returns the sum of the means, flat."""
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for step in range(first, first + steps):
        model.zero_grad()
        model(step).backward()
        total += torch.cat([(p.grad.to_dense() if p.grad.is_sparse else p.grad).flatten() for p in model.parameters()])
    return total


def check_rows(sparse):
    model, alone = ddp(Words(sparse=sparse)), Words(sparse=sparse)
    attachment, script = attached(model)
    got, sent = go(model, attachment, 50), go(alone, None, 50)
    figures = attachment.stats()["auto"]
    assert figures["phase"] == "decided" and attachment.spec == CASQ
    assert [spec == "plain" for spec in script.specs[:10]] == [True] * 9 + [False]  # one step more is watched, and no others
    assert list(figures["used_rows"]) == ["embedding.weight"] and 9 / 3000 < figures["used_rows"]["embedding.weight"] < 17 / 3000
    assert attachment.rules == [("embedding.weight", f"s2:mode=exact/{CASQ}")]
    assert attachment.compressors["embedding.weight"] == thinwire.canonical_spec(f"s2:mode=exact/{CASQ}")
    assert attachment.compressors["rest.0.weight"] == thinwire.canonical_spec(CASQ)
    assert f"'s2:mode=exact/{CASQ}'" in str(attachment) and "by rows" in str(attachment)
    assert attachment.stats()["row_bytes"] > 0
    state = attachment.state_dict(all_ranks=False)
    total = sent - unsent(attachment)
    dist.all_reduce(total)
    torch.testing.assert_close(dist.get_world_size() * got, total, rtol=1e-4, atol=2e-4)

    # A saved state resumes with the rules, and whoever names them has the same from the beginning.
    again = ddp(copy.deepcopy(model.module))
    resumed, _ = attached(again)
    resumed.load_state_dict(state)
    assert (resumed.spec, resumed.rules, resumed.compressors) == (attachment.spec, attachment.rules, attachment.compressors)
    assert torch.equal(go(model, attachment, 3, 50), go(again, resumed, 3, 50))
    fixed = thinwire.torch.attach(ddp(Words(sparse=sparse)), attachment.spec, rules=attachment.rules)
    assert fixed.compressors == attachment.compressors and fixed.rules == attachment.rules
    for each in (attachment, resumed, fixed):
        each.close()


@pytest.mark.parametrize("sparse", [False, True])
def test_of_embeddings_the_used_rows_travel(sparse):
    pool(2).run(check_rows, sparse)


def check_rows_pay(sparse):
    """By the model's own word, without a script: what is coded whole is some fifty times as long as all that is used."""
    model = ddp(Words(vocabulary=50_000, sparse=sparse))
    with thinwire.torch.attach(model) as attachment:
        # 100 Mb/s, beside which moments in which the machine is busy are nothing.
        attachment._auto._prospects._as_seen = lambda probed, element_bytes: (12.5e6, 1e-3)
        go(model, attachment, 10)
        prospects = attachment.stats()["auto"]["prospects"]
    by_rows = {prospect["spec"]: prospect["by_rows"] for prospect in prospects}
    assert by_rows["none"] and by_rows["bf16"]
    assert min((prospect for prospect in prospects if prospect["is_allowed"]), key=lambda prospect: prospect["seconds"])["by_rows"], prospects
    return prospects


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_of_a_large_embedding_pay(sparse):
    first, second = pool(2).run(check_rows_pay, sparse)
    assert first == second


class OnlyWords(Words):
    def forward(self, step):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        return self.embedding(torch.randint(self.embedding.num_embeddings, (8,), generator=generator)).square().mean()


def check_only_embeddings(sparse):
    whole = OnlyWords(sparse=sparse)
    del whole.rest
    model = ddp(whole)
    attachment, script = attached(model)
    go(model, attachment, 50)
    assert attachment.spec == CASQ and attachment.rules == [("embedding.weight", f"s2:mode=exact/{CASQ}")]
    prospects = attachment.stats()["auto"]["prospects"]
    assert all(prospect["by_rows"] for prospect in prospects) and all(0 < prospect["bits"] < 1 for prospect in prospects)
    attachment.close()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_model_of_embeddings_alone(sparse):
    pool(2).run(check_only_embeddings, sparse)


def check_rows_are_found_anew():
    """When steps change lastingly: here the words do, of which few rows were used, and then all."""
    model = ddp(Words(vocabulary=200))
    attachment, script = attached(model)
    go(model, attachment, 45)
    assert attachment.rules
    few, all_words = torch.randint, lambda high, size, generator: torch.arange(high)
    script.seconds = {"plain": 20.0, CASQ: 10.0, "bf16": 15.0}
    torch.randint = all_words
    try:
        go(model, attachment, 150, 45)
    finally:
        torch.randint = few
    figures = attachment.stats()["auto"]
    assert figures["searches"] == 2 and figures["phase"] == "decided" and figures["used_rows"] == {} and attachment.rules == []
    assert attachment.spec == CASQ and attachment.compressors["embedding.weight"] == thinwire.canonical_spec(CASQ)
    attachment.close()


def test_rows_are_found_anew_in_another_search():
    pool(2).run(check_rows_are_found_anew)


def check_other_embeddings():
    for model, rules in [(Words(), {"embed*": "none"}), (Words(vocabulary=30), None)]:  # a rule says it; a quarter of the rows and more
        model = ddp(model)
        attachment, _ = attached(model, rules=rules)
        go(model, attachment, 45)
        assert attachment.spec == CASQ and attachment.stats()["auto"]["used_rows"] == {}
        assert attachment.rules == list((rules or {}).items())
        attachment.close()
    model = ddp(Words())
    attachment, script = attached(model, {"plain": 3.0, "none": 2.0}, spec="auto:quality=lossless")
    go(model, attachment, 45)
    assert {"plain", "none"} == set(script.specs) and attachment.rules == [("embedding.weight", "s2:mode=exact")]
    attachment.close()


def test_embeddings_that_rules_name_or_that_are_used_whole_and_lossless():
    pool(2).run(check_other_embeddings)
