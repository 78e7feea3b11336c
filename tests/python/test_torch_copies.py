"""Copies of a model with thinwire attached: plain DDP models, to which thinwire can be attached in turn."""

import copy
import io
import pickle

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import backward, batch, ddp, gradients, layers
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from worker_pool import pool


def reloaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def check_copy(how):
    rank = dist.get_rank()
    model, plain = ddp(), ddp()
    with thinwire.torch.attach(model, "casq:bits=1") as attachment:
        backward(model, batch(0, rank))
        copied = {"deepcopy": copy.deepcopy, "torch.save": reloaded}[how](model)
        sent = attachment.stats()["reductions"]
        for each in (copied, plain):
            each.zero_grad()
            backward(each, batch(1, rank))
        assert torch.equal(gradients(copied), gradients(plain))
        assert attachment.stats()["reductions"] == sent
        with copied.join():
            backward(copied, batch(2, rank))
        with copied.join(enable=False):
            pass
        with thinwire.torch.attach(copied, "none") as second:
            backward(copied, batch(3, rank))
            assert (second.stats()["steps"], attachment.stats()["steps"]) == (1, 1)
        backward(model, batch(1, rank))  # the original goes on
        assert attachment.stats()["steps"] == 2


def check_moving_average():
    model = ddp(layers())
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    with thinwire.torch.attach(model, "casq:bits=2"):
        during = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimiser.zero_grad()
            backward(model, batch(step, dist.get_rank()))
            optimiser.step()
            average.update_parameters(model)
            during.update_parameters(model)
    inputs = batch(9, 0)
    with torch.no_grad():
        assert torch.equal(average(inputs), during(inputs)) and not torch.equal(during(inputs), model(inputs))


def check_attachment():
    with thinwire.torch.attach(ddp()) as attachment:
        for duplicate in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="neither copied nor pickled; save its state_dict"):
                duplicate(attachment)


@pytest.mark.parametrize("how", ["deepcopy", "torch.save"])
def test_a_copy_is_a_plain_ddp_model(how):
    pool(2).run(check_copy, how)


def test_moving_averages_may_be_taken():
    pool(2).run(check_moving_average)


def test_an_attachment_itself_is_not_copied():
    pool(2).run(check_attachment)
