"""What attach() refuses, and says; and how workers that do not agree find out."""

import pickle

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import backward, batch, ddp, layers
from thinwire import ArgumentError, PeerError, StateError
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from worker_pool import pool


def refused(said, model, *arguments, kind=ArgumentError, **options):
    with pytest.raises(kind, match=said):
        thinwire.torch.attach(model, *arguments, **options)


def check_models():
    refused("DistributedDataParallel", layers())
    refused("float64.*bfloat16", ddp(layers(torch.float64)))


def check_hooks():
    model = ddp()
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    refused("communication hook already", model)
    model = ddp()
    attachment = thinwire.torch.attach(model)
    refused("attached to this model already", model)
    with pytest.raises(RuntimeError, match="only be called once"):
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    attachment.close()


def check_arguments():
    refused("bits=9", ddp(), "casq:bits=9")
    refused("nonsense", ddp(), "nonsense")
    refused("bits", ddp(), "none", rules={"*": "casq:bits=no"})
    refused("rules map", ddp(), "none", rules={"*": 3})
    refused("lanes is 0", ddp(), lanes=0)
    refused("measure_every = -1", ddp(), measure_every=-1)
    for threads in (0, -1, 257, 10**12):
        refused(f"threads = {threads}; allowed: 1 to 256", ddp(), threads=threads)
    refused("seed = -1", ddp(), seed=-1)
    refused("timeout", ddp(), timeout=-1)
    refused("timeout", ddp(), timeout=0)


def check_join():
    model = ddp()
    with thinwire.torch.attach(model), pytest.raises(ArgumentError, match="join.. cannot work"):
        with model.join():
            pass
    with model.join(), pytest.raises(ArgumentError, match="join.. cannot work"):
        thinwire.torch.attach(model)


def check_pickling():
    model = ddp()
    with thinwire.torch.attach(model) as attachment:
        for thing in (attachment, model):
            with pytest.raises(TypeError, match="state_dict"):
                pickle.dumps(thing)


def check_late_freeze():
    """DDP still exchanges what was frozen after it was wrapped."""
    model = ddp()
    for parameter in model.module[0].parameters():
        parameter.requires_grad_(False)
    with thinwire.torch.attach(model), pytest.raises((ArgumentError, RuntimeError), match="attach"):
        model.module[0].requires_grad_(True)
        backward(model, batch(0, 0))


def check_closed():
    model = ddp()
    attachment = thinwire.torch.attach(model, "none")
    backward(model, batch(0, dist.get_rank()))
    attachment.close()
    attachment.close()
    with pytest.raises(StateError, match="closed"):
        backward(model, batch(0, dist.get_rank()))


def check_attach_again():
    model = ddp()
    thinwire.torch.attach(model, "none").close()
    second = thinwire.torch.attach(model, "casq:bits=4", seed=5)
    backward(model, batch(0, dist.get_rank()))
    assert second.stats()["steps"] == 1
    second.close()


def check_disagreement(options_by_rank, kinds, said):
    rank = dist.get_rank()
    refused(said, ddp(), kind=kinds[rank] if len(kinds) > rank else kinds[-1], **options_by_rank[rank])
    with thinwire.torch.attach(ddp(), "none") as attachment:  # nobody is left hanging
        assert attachment.stats()["steps"] == 0


def check_other_layout():
    torch.manual_seed(0)
    model = ddp()
    if dist.get_rank() == 1:
        model.module.register_module("extra", nn.Linear(2, 2))
    refused("parameters: .*extra.* on rank 1", model)


def test_models_that_cannot_be_served_are_refused():
    pool(2).run(check_models)


def test_one_hook_is_enough():
    pool(2).run(check_hooks)


def test_wrong_arguments_are_named():
    pool(2).run(check_arguments)


def test_join_is_refused_before_and_after():
    pool(2).run(check_join)


def test_live_objects_cannot_be_pickled_and_say_what_can():
    pool(1).run(check_pickling)


def test_a_parameter_that_was_unknown_at_attach_is_refused():
    pool(1).run(check_late_freeze)


def test_a_closed_attachment_refuses_to_work():
    pool(2).run(check_closed)


def test_a_closed_attachment_may_be_replaced():
    pool(2).run(check_attach_again)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([{"seed": 1}, {"seed": 2}, {"seed": 1}], "seed: 1 on ranks 0, 2, 2 on rank 1"),
        ([{"lanes": 1}, {}, {}], "lanes: 1 on rank 0, None on ranks 1, 2"),
        ([{}, {"compressor": "none"}, {}], "compressors: .*casq.* on ranks 0, 2, .*none.* on rank 1"),
        ([{}, {"rules": {"0.*": "none"}}, {}], "compressors: .* on rank 1"),
        ([{}, {"small_uncompressed": False}, {}], "compressors: .* on rank 1"),
    ],
    ids=["seed", "lanes", "spec", "rules", "policy"],
)
def test_workers_that_disagree_all_learn_who_wants_what(options, said):
    pool(3).run(check_disagreement, options, [ArgumentError], said)


def test_a_worker_that_cannot_attach_tells_the_others():
    wrong = {"compressor": "casq:bits=9"}
    pool(3).run(check_disagreement, [{}, wrong, {}], [PeerError, ArgumentError, PeerError], "bits=9")


def test_models_that_differ_are_told_apart():
    pool(2).run(check_other_layout)
