"""A model whose workers keep together in one of the ways that the job compares: in DDP, or by local steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from bench.training import random_projection, specs

_POWERSGD_FIRST_STEP = 10  # PyTorch advises to sum the first gradients, which vary most, plainly
_ONE_BUCKET_MB = 1000
_WARM_UP = "casq:rate=1"


def _bf16(group, bucket):  # bare, since DDP reads annotations and takes no strings
    """PyTorch's bf16 hook under another name: DDP refuses it by name on anything but NCCL and
    XCCL, though Gloo sums bf16."""
    return default_hooks.bf16_compress_hook(group, bucket)


_HALVES = {"bf16": _bf16, "fp16": default_hooks.fp16_compress_hook}


def ring_bytes(workers: int, payload: float) -> float:
    """Bytes that each worker sends in a ring all-reduce of `payload` bytes."""
    return 2 * (workers - 1) / workers * payload


@dataclass
class Costs:
    """A compressor's own account, from the first step to now, of this worker.

    `bytes_sent` by arithmetic; the others are None where the compressor does not tell.
    """

    bytes_sent: float
    compress_seconds: float | None = None
    compression_error: float | None = None
    row_bytes: float | None = None  # of bytes_sent, what compressors of sparse rows sent
    details: dict = field(default_factory=dict)


class Replica:
    """A `module`, and the `model` that trains it: DDP, whose gradients go through `spec` in `group`, or the module itself,
    which FSDP2 shards or local steps average."""

    def __init__(self, model: nn.Module, spec: str, group: dist.ProcessGroup | None = None,
                 seed: int = 0, timeout: float = 120, lanes: int | None = None,
                 powersgd_first_step: int = _POWERSGD_FIRST_STEP) -> None:
        self.spec = spec
        self._powersgd_first_step = powersgd_first_step
        self._workers = dist.get_world_size(group)
        self._elements = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self._powersgd: powerSGD_hook.PowerSGDState | None = None
        self._random: random_projection.RandomProjection | None = None
        self._averager = None  # thinwire's
        self._seed, self._timeout = seed, timeout
        self._local = specs.local_options(spec)
        self._group, self._lanes, self._steps = group, lanes, 0
        self.module = self.model = model
        if self._local is not None:
            return
        if specs.sharded_gathers(spec) is not None:
            self._shard(group)
            return
        self.model = DistributedDataParallel(
            model, process_group=group, gradient_as_bucket_view=True,
            init_sync=False,  # the same seed made the same weights on every worker
            # PyTorch's PowerSGD has two rounds a bucket; with several buckets, workers may issue
            # them in different orders, and Gloo then aborts the process.
            bucket_cap_mb=_ONE_BUCKET_MB if specs.powersgd_rank(spec) else None)
        self._register(group, lanes)

    def _shard(self, group: dist.ProcessGroup | None) -> None:
        """By FSDP2: each of the module's own parts, and what is left."""
        mesh = DeviceMesh.from_group(group or dist.group.WORLD, "cpu")
        for part in [*self.module.children(), self.module]:
            if any(True for _ in part.parameters()):
                fully_shard(part, mesh=mesh)
        if self.spec == "fsdp/plain":
            return
        import thinwire.torch
        gathers = specs.sharded_gathers(self.spec)
        self._averager = thinwire.torch.attach(self.module, **self._thinwire_options(), gathers=None if gathers == "plain" else gathers)

    def _register(self, group: dist.ProcessGroup | None, lanes: int | None) -> None:
        rank, ratio = specs.powersgd_rank(self.spec), specs.random_ratio(self.spec)
        if self.spec in _HALVES:
            self.model.register_comm_hook(group, _HALVES[self.spec])
        elif rank:
            self._powersgd = powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=rank,
                start_powerSGD_iter=self._powersgd_first_step, random_seed=self._seed,
                orthogonalization_epsilon=1e-8)
            self.model.register_comm_hook(self._powersgd, powerSGD_hook.powerSGD_hook)
        elif ratio:
            self._random = random_projection.RandomProjection(group, ratio, self._seed)
            self.model.register_comm_hook(self._random, random_projection.hook)
        elif self.spec != "plain":
            self._attach(**({"compressor": _WARM_UP, "rules": None} if specs.warm_up_steps(self.spec) else {}))

    def _attach(self, **options) -> None:
        import thinwire.torch
        hosts = "auto" if specs.on_two_levels(self.spec) else "flat"
        self._averager = thinwire.torch.attach(self.model, **self._thinwire_options() | options, lanes=self._lanes, hosts=hosts)

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Before the first step of the optimizer of the model."""
        if self._local is None:
            return
        import thinwire.torch
        options = {name: value for name, value in self._local.items() if name != "muon"}
        rate, momentum = options.pop("rate", 0.7), options.pop("momentum", 0.9)
        self._averager = thinwire.torch.LocalSteps(
            self.module, optimizer, **options, **self._thinwire_options(),
            outer=lambda shared: torch.optim.SGD(shared, rate, momentum, nesterov=momentum > 0))

    def after_step(self) -> None:
        """After every step of the optimizer."""
        if self._local is not None:
            self._averager.step()
        self._steps += 1
        if self._steps == specs.warm_up_steps(self.spec):  # what its residuals hold, little of a step, is lost
            self._averager.close()
            self._attach()

    def tested(self) -> AbstractContextManager[None]:
        """Within it the module's parameters are the same on all workers."""
        if self._local is not None:
            return self._averager.shared_parameters()
        return self._gathered() if specs.sharded_gathers(self.spec) is not None else nullcontext()

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        """Parameters are gathered once, as workers may test in different numbers of parts."""
        parts = [part for part in self.module.modules() if isinstance(part, FSDPModule)]
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        yield
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()

    def _thinwire_options(self) -> dict:
        embedding, rest = specs.thinwire_specs(self.spec)
        return {"compressor": rest, "rules": {"*embedding*": embedding} if embedding else None,
                "seed": self._seed, "timeout": self._timeout}

    @property
    def warm_up_steps(self) -> int:
        """Steps before the compressor is at its normal work."""
        if self._powersgd:
            return self._powersgd_first_step + 2
        return 50 if specs.is_auto(self.spec) else specs.warm_up_steps(self.spec) + 3

    @property
    def lanes(self) -> int | None:
        """Of thinwire's attachment; PyTorch's hooks have none."""
        return getattr(self._averager, "lanes", None)

    def stats(self) -> dict:
        """What thinwire says of itself."""
        return self._averager.stats()

    def costs(self, steps: int) -> Costs:
        """The account after `steps` steps."""
        plain = ring_bytes(self._workers, 4 * self._elements)
        if self._averager is not None:
            return _thinwire_costs(self._averager.stats())
        if self._powersgd is not None:
            first = min(steps, self._powersgd_first_step)
            sent = 4 * self._powersgd.total_numel_after_compression
            return Costs(first * plain + ring_bytes(self._workers, sent))
        if self._random is not None:
            return Costs(ring_bytes(self._workers, 4 * self._random.sent_elements))
        return Costs(steps * (plain / 2 if self.spec in _HALVES else plain))

    def close(self) -> None:
        """Ends thinwire's threads and process groups; PyTorch's hooks hold none."""
        if self._averager is not None:
            self._averager.close()


def _thinwire_costs(stats: dict) -> Costs:
    of_both = [stats, *([stats["gathered"]] if "gathered" in stats else [])]
    busy = sum(value for one in of_both for phase, value in one["seconds"].items() if phase != "wire")
    return Costs(sum(one["traffic_bytes"] for one in of_both), busy, stats["compression_error"],
                 stats["row_bytes"], stats)
