"""What torch.profiler shows of thinwire."""

import thinwire.torch
import torch
import torch.distributed as dist
from small_models import backward, batch, ddp
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile
from worker_pool import pool


def check_profile(all_threads):
    model = ddp()
    with thinwire.torch.attach(model, "casq:bits=2") as attachment:
        backward(model, batch(0, dist.get_rank()))
        config = _ExperimentalConfig(profile_all_threads=all_threads)
        with profile(activities=[ProfilerActivity.CPU], experimental_config=config) as profiled:
            backward(model, batch(1, dist.get_rank()))
            attachment.stats()
        return {event.key for event in profiled.key_averages() if event.key.startswith("thinwire")}


def test_the_wait_shows_and_what_lanes_do_if_all_threads_are_asked_for():
    assert pool(2).run(check_profile, False)[0] == {"thinwire::wait"}
    assert pool(2).run(check_profile, True)[0] == {"thinwire::wait", "thinwire::gather"}
