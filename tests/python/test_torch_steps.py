"""Where a step begins and ends, whatever buckets DDP makes."""

import thinwire.torch
import torch
import torch.distributed as dist
from small_models import Branches, backward, batch, ddp, train
from thinwire import StateError
from worker_pool import pool


class CountedScale:
    def __init__(self):
        self.asked = 0

    def get_scale(self):
        self.asked += 1
        return 2.0**self.asked


def check_first_bucket_skipped():
    """Bucket 0 holds the last branch, which is not used."""
    scaler = CountedScale()
    model = ddp(Branches(), find_unused_parameters=True, skip_all_reduce_unused_params=True)
    with thinwire.torch.attach(model, "casq:bits=2", scaler=scaler) as attachment:
        first_buckets = []
        average = attachment.average
        attachment.average = lambda bucket: first_buckets.append(bucket.index()) or average(bucket)
        for step in range(4):
            first_buckets.clear()
            model.zero_grad()
            backward(model, batch(step, dist.get_rank()), [0])
            assert 0 not in first_buckets and first_buckets
            assert scaler.asked == step + 1
            assert attachment.stats()["steps"] == step + 1
        attachment._lanes.failure.error = ValueError("a lane's")  # a failure is noticed at the next step's begin
        try:
            attachment._enter_step()
        except StateError:
            return
    raise AssertionError("the step began")


def check_no_cap():
    model, plain = ddp(bucket_cap_mb=0), ddp(bucket_cap_mb=0)
    with thinwire.torch.attach(model, "none") as attachment:
        torch.testing.assert_close(train(model, 2, dist.get_rank()), train(plain, 2, dist.get_rank()), rtol=1e-5, atol=1e-7)
        assert attachment.stats()["steps"] == 2


def test_a_step_begins_with_whichever_bucket_comes_first():
    pool(2).run(check_first_bucket_skipped)


def test_every_parameter_may_be_a_bucket_of_its_own():
    pool(2).run(check_no_cap)
