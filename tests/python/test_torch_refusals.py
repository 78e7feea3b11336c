"""What attach() refuses, and says; and how workers that do not agree find out."""

import threading

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import backward, batch, ddp, layers
from thinwire import ArgumentError, PeerError, StateError
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel.distributed import _MixedPrecision
from worker_pool import WorkerPool, pool


def refused(said, model, *arguments, kind=ArgumentError, **options):
    with pytest.raises(kind, match=said):
        thinwire.torch.attach(model, *arguments, **options)


def check_models():
    refused("got Sequential. Wrap the module first", layers())
    refused("got int", 5)
    refused("a compiled DDP model. attach.. to the DDP model first", torch.compile(ddp(), backend="eager"))
    refused("made by replicate", replicate(layers()))
    refused("mixed_precision=.*autocast", ddp(mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16)))


def check_hooks():
    threads = threading.active_count()
    model = ddp()
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    refused("communication hook already .fp16_compress_hook", model)
    model = ddp()
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    refused("communication hook already .*FP16_COMPRESS", model)
    assert threading.active_count() == threads
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
    refused("lanes = 0", ddp(), lanes=0)
    refused("measure_every = -1", ddp(), measure_every=-1)
    for threads in (0, -1, 257, 10**12):
        refused(f"threads = {threads}; allowed: 1 to 256", ddp(), threads=threads)
    refused("seed = -1", ddp(), seed=-1)
    refused("timeout", ddp(), timeout=-1)
    refused("timeout", ddp(), timeout=0)
    refused("timeout = 'soon'; allowed: seconds", ddp(), timeout="soon")
    refused("compressor is a spec like .* got None", ddp(), None)
    refused("seed = 1.5; allowed: 0 to 2", ddp(), seed=1.5)
    refused("threads = 2.0; allowed: 1 to 256", ddp(), threads=2.0)
    refused("lanes = '2'; allowed", ddp(), lanes="2")
    refused("measure_every = None; allowed", ddp(), measure_every=None)
    refused("scaler = 5; allowed: .*GradScaler", ddp(), scaler=5)
    refused("backend = 3; allowed", ddp(), backend=3)
    refused("rules map patterns to specs.*got 5", ddp(), rules=5)
    refused("rules map patterns to specs.*got '.embed'", ddp(), rules="*embed")
    refused("'.embed' matches no parameter; there are 12: 0.weight, 0.bias, .*, ...$", ddp(), rules={"0.*": "none", "*embed": "none"})


def check_wrapped_names():
    compiled = torch.compile(layers(), backend="eager")
    with thinwire.torch.attach(ddp(compiled), "casq:bits=2", rules={"1.weight": "none"}) as attachment:
        assert list(attachment.compressors) == [name for name, _ in layers().named_parameters()]
        assert attachment.compressors["1.weight"] == "none" != attachment.compressors["2.weight"]
    within = nn.Sequential(checkpoint_wrapper(layers()), layers())
    with thinwire.torch.attach(ddp(within), "casq:bits=2", rules={"0.1.weight": "none"}) as attachment:
        assert attachment.compressors["0.1.weight"] == "none"
    frozen = layers()
    frozen[0].requires_grad_(False)
    thinwire.torch.attach(ddp(frozen), rules={"0.*": "none"}).close()  # a rule may speak of what is not trained


def check_join():
    model = ddp()
    with thinwire.torch.attach(model):
        with pytest.raises(ArgumentError, match="join.. cannot work"):
            model.join()
        with model.join(enable=False):
            backward(model, batch(0, dist.get_rank()))
        with Join([model]), pytest.raises(ArgumentError, match="join.. cannot work"):
            model(batch(0, dist.get_rank()))
        with model.join(enable=False):
            backward(model, batch(0, dist.get_rank()))
    model = ddp()
    with model.join(), pytest.raises(ArgumentError, match="join.. cannot work"):
        thinwire.torch.attach(model)


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
    with torch.no_grad():
        model(batch(0, 0))
    with pytest.raises(StateError, match="closed on this model.*attach.. again, or wrap"):
        model(batch(0, dist.get_rank()))
    with thinwire.torch.attach(model, "none") as again:  # nothing was spoilt
        backward(model, batch(0, dist.get_rank()))
        assert again.stats()["steps"] == 1


def check_closed_between():
    """Between the forward pass and the backward pass, after which DDP cannot go on."""
    model = ddp()
    attachment = thinwire.torch.attach(model, "none")
    loss = model(batch(0, dist.get_rank())).sum()
    attachment.close()
    with pytest.raises((StateError, RuntimeError), match="wrap the module in a new DDP"):
        loss.backward()
    with pytest.raises(StateError, match="wrap the module in a new DDP"):
        model(batch(0, dist.get_rank()))
    refused("wrap the module in a new DDP", model)


def check_other_group():
    model = ddp()
    attachment = thinwire.torch.attach(model, "none")
    group = dist.new_group()
    model._update_process_group(group)
    with pytest.raises(StateError, match="another process group"):
        model(batch(0, dist.get_rank()))
    attachment.close()
    with thinwire.torch.attach(model, "none") as again:
        backward(model, batch(0, dist.get_rank()))
        assert again._group is group
    dist.destroy_process_group(group)


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


def test_names_are_those_of_the_models_own_modules():
    pool(2).run(check_wrapped_names)


def test_join_is_refused_before_and_after():
    pool(2).run(check_join)


def test_a_parameter_that_was_unknown_at_attach_is_refused():
    pool(2).run(check_late_freeze)


def test_a_closed_attachment_refuses_to_work():
    pool(2).run(check_closed)


def test_a_model_whose_hook_is_gone_in_a_backward_pass_is_refused():
    own = WorkerPool(2)
    own.run(check_closed_between)
    own.kill()


def test_another_process_group_is_noticed():
    pool(2).run(check_other_group)


def test_a_closed_attachment_may_be_replaced():
    pool(2).run(check_attach_again)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([{"seed": 1}, {"seed": 2}, {"seed": 1}], "seed: 1 on ranks 0, 2, 2 on rank 1"),
        ([{"lanes": 1}, {}, {}], "lanes: 1 on rank 0, None on ranks 1, 2"),
        ([{}, {"compressor": "none"}, {}], "compressors: .*auto.* on ranks 0, 2, .*none.* on rank 1"),
        ([{}, {"rules": {"0.*": "none"}}, {}], "compressors: .* on rank 1"),
        ([*[{"compressor": "casq:bits=2"}] * 2, {"compressor": "casq:bits=2", "small_uncompressed": False}], "compressors: .* on rank 2"),
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
