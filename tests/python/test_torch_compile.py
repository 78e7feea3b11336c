"""torch.compile() of the module before DDP has it, or of the DDP model that has an attachment."""

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import ddp, layers, train
from worker_pool import pool


def compiled(model):
    return torch.compile(model, backend="eager")  # which changes no bits


def check(spec, when):
    # PyTorch compiles no DDP model whose other buckets are smaller than the first one
    model = ddp(compiled(layers()) if when == "before" else layers(), bucket_cap_mb=1)
    with thinwire.torch.attach(model, spec) as attachment:
        found = train(compiled(model) if when == "after" else model, 5, dist.get_rank())
        stats = attachment.stats()
    reference = ddp(bucket_cap_mb=1)
    with thinwire.torch.attach(reference, spec) as attachment:
        expected = train(reference, 5, dist.get_rank())
    assert stats["steps"] == attachment.stats()["steps"] == 5
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize("spec", ["casq:bits=2", "none"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compiled_model_trains_as_it_does_uncompiled(when, spec):
    pool(2).run(check, spec, when)
