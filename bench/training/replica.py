"""A model in DDP whose gradients are summed in one of the ways that the job compares."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from bench.training import random_projection, specs

_POWERSGD_FIRST_STEP = 10  # PyTorch advises to sum the first gradients, which vary most, plainly
_ONE_BUCKET_MB = 1000


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
    """A model wrapped in DDP, whose gradients go through `spec` in `group`."""

    def __init__(self, model: nn.Module, spec: str, group: dist.ProcessGroup | None = None,
                 seed: int = 0, timeout: float = 120, lanes: int | None = None,
                 powersgd_first_step: int = _POWERSGD_FIRST_STEP) -> None:
        self.spec = spec
        self._powersgd_first_step = powersgd_first_step
        self._workers = dist.get_world_size(group)
        self._elements = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self._powersgd: powerSGD_hook.PowerSGDState | None = None
        self._random: random_projection.RandomProjection | None = None
        self._attachment = None
        self.ddp = DistributedDataParallel(
            model, process_group=group, gradient_as_bucket_view=True,
            init_sync=False,  # the same seed made the same weights on every worker
            # PyTorch's PowerSGD has two rounds a bucket; with several buckets, workers may issue
            # them in different orders, and Gloo then aborts the process.
            bucket_cap_mb=_ONE_BUCKET_MB if specs.powersgd_rank(spec) else None)
        self._register(group, seed, timeout, lanes)

    def _register(self, group: dist.ProcessGroup | None, seed: int, timeout: float,
                  lanes: int | None) -> None:
        rank, ratio = specs.powersgd_rank(self.spec), specs.random_ratio(self.spec)
        if self.spec in _HALVES:
            self.ddp.register_comm_hook(group, _HALVES[self.spec])
        elif rank:
            self._powersgd = powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=rank,
                start_powerSGD_iter=self._powersgd_first_step, random_seed=seed,
                orthogonalization_epsilon=1e-8)
            self.ddp.register_comm_hook(self._powersgd, powerSGD_hook.powerSGD_hook)
        elif ratio:
            self._random = random_projection.RandomProjection(group, ratio, seed)
            self.ddp.register_comm_hook(self._random, random_projection.hook)
        elif self.spec != "plain":
            import thinwire.torch
            embedding, rest = specs.thinwire_specs(self.spec)
            rules = {"*embedding*": embedding} if embedding else None
            self._attachment = thinwire.torch.attach(
                self.ddp, rest, rules=rules, seed=seed, timeout=timeout, lanes=lanes)

    @property
    def warm_up_steps(self) -> int:
        """Steps before the compressor is at its normal work."""
        return self._powersgd_first_step + 2 if self._powersgd else 3

    @property
    def lanes(self) -> int | None:
        """Of thinwire; PyTorch's hooks have none."""
        return self._attachment.lanes if self._attachment else None

    def costs(self, steps: int) -> Costs:
        """The account after `steps` steps."""
        plain = ring_bytes(self._workers, 4 * self._elements)
        if self._attachment is not None:
            return _thinwire_costs(self._attachment.stats())
        if self._powersgd is not None:
            first = min(steps, self._powersgd_first_step)
            sent = 4 * self._powersgd.total_numel_after_compression
            return Costs(first * plain + ring_bytes(self._workers, sent))
        if self._random is not None:
            return Costs(ring_bytes(self._workers, 4 * self._random.sent_elements))
        return Costs(steps * (plain / 2 if self.spec in _HALVES else plain))

    def close(self) -> None:
        """Ends thinwire's threads and process groups; PyTorch's hooks hold none."""
        if self._attachment is not None:
            self._attachment.close()


def _thinwire_costs(stats: dict) -> Costs:
    busy = sum(value for phase, value in stats["seconds"].items() if phase != "wire")
    return Costs(stats["traffic_bytes"], busy, stats["compression_error"],
                 stats["row_bytes"], stats)
