"""Lets tests that were written for GPUs run on a host without any: every CUDA device is the host."""

import contextlib
import functools

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed

SKIPPING = ["skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu", "require_n_gpus_for_nccl_backend"]  # decorators with arguments
QUIET = ["set_device", "synchronize", "manual_seed"]


class HostAsDevice(TorchFunctionMode):
    """Inside it, functions of torch that are given a CUDA device use the host."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = dict(options or {})
        if function is torch.Tensor.cuda:
            return arguments[0]
        if function is torch.Tensor.to and len(arguments) > 1 and _is_device(arguments[1]):
            arguments = (arguments[0], "cpu", *arguments[2:])
        if _is_device(options.get("device")):
            options["device"] = "cpu"
        return function(*arguments, **options)


def install():
    """For the whole process, before PyTorch's tests are imported; returns what is to be entered around a test."""
    for name in SKIPPING:
        setattr(common_distributed, name, lambda *_, **__: lambda test: test)
    common_distributed.skip_if_no_gpu = lambda test: test
    for name in QUIET:
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.device = lambda *_, **__: contextlib.nullcontext()
    nn.Module.cuda = lambda module, *_, **__: module
    _without_devices(nn.Module, "to")
    _without_device_ids(nn.parallel.DistributedDataParallel)
    return HostAsDevice


def _is_device(value):
    return type(value) is int or str(value).startswith("cuda")


def _without_devices(owner, name):
    original = getattr(owner, name)

    @functools.wraps(original)
    def to(module, *arguments, **options):
        arguments = ["cpu" if _is_device(argument) else argument for argument in arguments]
        return original(module, *arguments, **{key: "cpu" if _is_device(value) else value for key, value in options.items()})

    setattr(owner, name, to)


def _without_device_ids(model):
    construct = model.__init__

    @functools.wraps(construct)
    def constructed(self, *arguments, **options):
        construct(self, *arguments, **(options | {"device_ids": None, "output_device": None}))

    model.__init__ = constructed
