"""Types of gradients that only "none" takes, and a worker that is alone, whose gradients are left as they are."""

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import WIDTH, backward, batch, ddp, gradients, layers, train
from torch import nn
from worker_pool import pool


class Wide(nn.Module):
    """Float32 within, and a double and a complex parameter."""

    def __init__(self, sparse=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = layers()
        self.real = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64))
        self.turned = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64))
        self.table = nn.Embedding(20, 4, sparse=sparse, dtype=torch.float64)

    def forward(self, inputs):
        rows = self.table(torch.arange(3)).sum()
        wide = (inputs.double() @ self.real + (inputs.to(torch.complex64) @ self.turned).abs()).mean()
        return self.layers(inputs) + wide.float() + rows.float()


def check_wide(sparse):
    rank = dist.get_rank()
    ours, plain = ddp(Wide(sparse)), ddp(Wide(sparse))
    exempt = {"real": "none", "turned": "none", "table.weight": "none"}
    with thinwire.torch.attach(ours, "casq:bits=2", rules=exempt) as attachment:
        for step in range(3):
            for model in (ours, plain):
                model.zero_grad()
                backward(model, batch(step, rank))
            for name in exempt:
                mine, theirs = (model.module.get_parameter(name).grad.to_dense() for model in (ours, plain))
                torch.testing.assert_close(mine, theirs, rtol=1e-12 if mine.dtype == torch.float64 else 1e-5, atol=0)
            assert ours.module.layers[1].weight.grad.isfinite().all()
        stats = attachment.stats()
        wide = sum(parameter.numel() * parameter.element_size() for name, parameter in ours.module.named_parameters() if name in exempt)
        assert stats["traffic_bytes"] > 3 * wide and stats["plain_bytes"] > stats["traffic_bytes"]


def check_other_compressors():
    with pytest.raises(thinwire.ArgumentError, match="'real' is torch.float64, and 'casq.*float32, torch.bfloat16.*'real': 'none'"):
        thinwire.torch.attach(ddp(Wide()), "casq:bits=2", rules={"turned": "none"})


@pytest.mark.parametrize("sparse", [False, True])
def test_none_takes_what_ddp_takes(sparse):
    pool(2).run(check_wide, sparse)


def test_other_compressors_say_what_they_take():
    pool(2).run(check_other_compressors)


def check_alone():
    ours, plain = ddp(), ddp()
    with thinwire.torch.attach(ours, "casq:bits=1", small_uncompressed=False) as attachment:
        for mine, theirs in zip(train(ours, 4, 0), train(plain, 4, 0), strict=True):
            assert torch.equal(mine, theirs)
        assert attachment.stats()["steps"] == 4 and attachment.stats()["traffic_bytes"] == 0
        assert attachment.lanes == 0
        attachment.load_state_dict(attachment.state_dict())
    assert gradients(ours).isfinite().all()


def test_a_worker_that_is_alone_keeps_its_gradients_bit_for_bit():
    pool(1).run(check_alone)
