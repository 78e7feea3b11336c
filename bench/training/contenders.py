"""What the job compares: PyTorch's own ways to sum gradients, and thinwire's.

    plain             DDP's own all-reduce, no hook
    bf16, fp16        PyTorch's compression hooks
    powersgd[:rank=R] PyTorch's PowerSGD hook, rank 4 unless said otherwise
    anything else     a thinwire specification, such as casq:bits=2 or casq:bits=1,feedback=off;
                      "thinwire:bf16" is thinwire's bf16, where "bf16" is PyTorch's
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

DEFAULT = "plain,bf16,powersgd,casq:bits=2,casq:bits=3"


def _bf16(group, bucket):  # bare, since DDP reads annotations and takes no strings
    """PyTorch's bf16 hook under another name: DDP refuses it by name on anything but NCCL and
    XCCL, though Gloo sums bf16."""
    return default_hooks.bf16_compress_hook(group, bucket)


_HALVES = {"bf16": _bf16, "fp16": default_hooks.fp16_compress_hook}
_POWERSGD = re.compile(r"powersgd(?::rank=([1-9]\d*))?")
_POWERSGD_FIRST_STEP = 10  # PyTorch advises to sum the first gradients, which vary most, plainly
_ONE_BUCKET_MB = 1000
_THINWIRE = "thinwire:"


def split_specs(text: str) -> list[str]:
    """Specifications from a list separated by commas, semicolons or spaces.

    A comma before `key=value` belongs to the specification before it:
    "plain,casq:bits=1,feedback=off,bf16" names three.
    """
    specs: list[str] = []
    for separator, word in re.findall(r"([,;\s]*)([^,;\s]+)", text):
        continues = separator.strip() == "," and re.match(r"[^:/]*=", word)
        if continues and specs:
            specs[-1] += "," + word
        else:
            specs.append(word)
    return list(dict.fromkeys(specs))


def is_pytorch(spec: str) -> bool:
    """Whether PyTorch itself serves `spec`, without thinwire."""
    return spec == "plain" or spec in _HALVES or _POWERSGD.fullmatch(spec) is not None


def thinwire_spec(spec: str) -> str:
    return spec.removeprefix(_THINWIRE)


def check(specs: list[str]) -> None:
    """ValueError for a specification that nobody serves, before any process is started."""
    if not specs:
        raise ValueError("no compressor named")
    for spec in specs:
        if spec.startswith("powersgd") and not is_pytorch(spec):
            raise ValueError(f"{spec!r}: expected powersgd or powersgd:rank=R with R >= 1")
    ours = [spec for spec in specs if not is_pytorch(spec)]
    if not ours:
        return
    try:
        import numpy
        import thinwire
    except ImportError as error:
        raise ValueError(f"{', '.join(ours)}: thinwire's Python package is missing ({error}); "
                         "./run builds it, and so does pip install .") from error
    for spec in ours:
        try:
            thinwire.exchange([numpy.ones(8, numpy.float32)], thinwire_spec(spec))
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{spec!r}: {error}") from error


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
    details: dict = field(default_factory=dict)


class Replica:
    """A model wrapped in DDP, whose gradients go through `spec` in `group`."""

    def __init__(self, model: nn.Module, spec: str, group: dist.ProcessGroup | None = None,
                 seed: int = 0, timeout: float = 120) -> None:
        self.spec = spec
        self._workers = dist.get_world_size(group)
        self._elements = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self._powersgd: powerSGD_hook.PowerSGDState | None = None
        self._attachment = None
        self.ddp = DistributedDataParallel(
            model, process_group=group, gradient_as_bucket_view=True,
            init_sync=False,  # the same seed made the same weights on every worker
            # PyTorch's PowerSGD has two rounds a bucket; with several buckets, workers may issue
            # them in different orders, and Gloo then aborts the process.
            bucket_cap_mb=_ONE_BUCKET_MB if _POWERSGD.fullmatch(spec) else None)
        self._register(group, seed, timeout)

    def _register(self, group: dist.ProcessGroup | None, seed: int, timeout: float) -> None:
        powersgd = _POWERSGD.fullmatch(self.spec)
        if self.spec in _HALVES:
            self.ddp.register_comm_hook(group, _HALVES[self.spec])
        elif powersgd:
            self._powersgd = powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=int(powersgd[1] or 4),
                start_powerSGD_iter=_POWERSGD_FIRST_STEP, random_seed=seed,
                orthogonalization_epsilon=1e-8)
            self.ddp.register_comm_hook(self._powersgd, powerSGD_hook.powerSGD_hook)
        elif self.spec != "plain":
            import thinwire.torch
            self._attachment = thinwire.torch.attach(
                self.ddp, thinwire_spec(self.spec), seed=seed, timeout=timeout)

    @property
    def warm_up_steps(self) -> int:
        """Steps before the compressor is at its normal work."""
        return _POWERSGD_FIRST_STEP + 2 if self._powersgd else 3

    def costs(self, steps: int) -> Costs:
        """The account after `steps` steps."""
        plain = ring_bytes(self._workers, 4 * self._elements)
        if self._attachment is not None:
            return _thinwire_costs(self._attachment.stats())
        if self._powersgd is not None:
            first = min(steps, _POWERSGD_FIRST_STEP)
            sent = 4 * self._powersgd.total_numel_after_compression
            return Costs(first * plain + ring_bytes(self._workers, sent))
        return Costs(steps * (plain / 2 if self.spec in _HALVES else plain))

    def close(self) -> None:
        """Lets go of what the hook holds (threads, process groups), if it can."""
        detach = getattr(self._attachment, "close", None) or getattr(
            self._attachment, "detach", None)
        if detach:
            detach()


_WIRE_PHASES = {"wire", "wait"}


def _thinwire_costs(stats: dict) -> Costs:
    seconds = stats.get("seconds", {})
    busy = sum(value for phase, value in seconds.items() if phase not in _WIRE_PHASES)
    return Costs(stats["traffic_bytes"], busy, stats.get("compression_error"), stats)
