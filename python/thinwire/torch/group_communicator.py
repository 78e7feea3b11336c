"""The collectives of an exchange, on a torch.distributed process group of any backend."""

from collections.abc import Mapping
from typing import Protocol

import torch
import torch.distributed as dist
from torch.utils.dlpack import to_dlpack

from thinwire._native import SocketCommunicator

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_GREATEST = torch.iinfo(torch.int32).max
_BACKENDS_WITH_OR = ("gloo", "mpi")
_PAIRS_FROM = 256 * 1024  # bytes for each worker; with fewer, rounds in Python take longer than what they save
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the older name warns where there is a newer


class Collective(Protocol):
    """``thinwire._native.Collective``: data and result are flat arrays over host memory."""

    kind: str
    group: str  # "all", or a part of it
    root: int
    data: object
    result: object


class GroupCommunicator:
    """Performs collectives in place on host memory, blocking until they are done.

    All workers of the group call perform() with matching collectives in the same order. ``device``: the device whose
    tensors the backend wants; where it is not the host, bytes go there and back. ``parts``: groups of a part of the workers,
    by the names that collectives have for them. ``connections``: between the same workers, by which perform() goes then. Raises what the backend raises.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device | None = None,
        parts: Mapping[str, dist.ProcessGroup] | None = None,
        connections: SocketCommunicator | None = None,
    ):
        self.group = group
        self._connections = connections
        self._parts = {name: GroupCommunicator(part, device) for name, part in (parts or {}).items()}
        self._world_size = dist.get_world_size(group)
        self._device = device or device_of(group)
        backends = dist.get_backend_config(group)
        self._has_or = any(backend in backends for backend in _BACKENDS_WITH_OR)
        self._sends_to_all_at_once = self._device.type == "cpu" and "cpu:gloo" in backends

    def perform(self, collective: Collective) -> None:
        """Returns when the collective's result is in the host's memory."""
        if self._connections is not None:
            self._connections.perform(collective)
        elif collective.group != "all":
            self._parts[collective.group]._perform(collective)
        else:
            self._perform(collective)

    def _perform(self, collective: Collective) -> None:
        data = torch.from_dlpack(collective.data)
        if data.dtype == torch.uint32:  # no engine adds or merges these; the bits are the same
            data = data.view(torch.int32)
        if data.numel() == 0:
            return  # the same on every worker, and some engines refuse it
        match collective.kind:
            case "sum":
                self._all_reduce(data, dist.ReduceOp.SUM)
            case "max":
                self.greatest(data)
            case "unite":
                self._unite(data)
            case "gather":
                self._gather(torch.from_dlpack(collective.result), data)
            case "scatter":
                self._scatter(torch.from_dlpack(collective.result), data)
            case "broadcast":
                self._broadcast(data, collective.root)
            case kind:
                raise NotImplementedError(f"no collective {kind!r}")

    def add_up(self, tensor: torch.Tensor) -> None:
        """In place; of any type that the backend sums, complex ones too."""
        if self._connections is not None and tensor.dtype in _FLOATS:
            self._connections.sum(to_dlpack(tensor.view(-1)))
            return
        self._all_reduce(torch.view_as_real(tensor) if tensor.is_complex() else tensor, dist.ReduceOp.SUM)

    def _all_reduce(self, data: torch.Tensor, operation: dist.ReduceOp) -> None:
        moved = self._on_device(data)
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        self.group.allreduce([moved], options).wait()  # dist.all_reduce() is slower by half as much again
        _copy_back(data, moved)

    def greatest(self, data: torch.Tensor) -> None:
        """Of all workers' numbers, one by one, in place. NaN is the greatest."""
        if self._connections is not None and data.dtype in _FLOATS:
            self._connections.greatest(to_dlpack(data))
            return
        if not data.is_floating_point():
            self._all_reduce(data, dist.ReduceOp.MAX)
            return
        # Engines disagree on NaN, and Gloo even leaves different results on different workers. Integers have none.
        keys = ordered_keys(data.float())
        self._all_reduce(keys, dist.ReduceOp.MAX)
        data.copy_(from_ordered_keys(keys))

    def _unite(self, data: torch.Tensor) -> None:
        if self._has_or:
            self._all_reduce(data, dist.ReduceOp.BOR)
            return
        everyones = data.new_empty(self._world_size * data.numel())
        self._gather(everyones, data)
        for words in everyones.view(self._world_size, -1):
            data.bitwise_or_(words)

    def _gather(self, result: torch.Tensor, data: torch.Tensor) -> None:
        moved = self._room_for(result)
        _all_gather(moved, self._on_device(data), group=self.group)
        _copy_back(result, moved)

    def _scatter(self, result: torch.Tensor, data: torch.Tensor) -> None:
        if self._sends_to_all_at_once and data.nbytes >= _PAIRS_FROM * self._world_size:
            self._scatter_in_pairs(result, data)
            return
        moved = self._room_for(result)
        dist.all_to_all_single(moved, self._on_device(data), group=self.group)
        _copy_back(result, moved)

    def _scatter_in_pairs(self, result: torch.Tensor, data: torch.Tensor) -> None:
        """Each worker sends to one and receives from one at a time: faster on slow links than if all send to all at once."""
        rank, sent, received = self.group.rank(), data.view(self._world_size, -1), result.view(self._world_size, -1)
        received[rank].copy_(sent[rank])
        for distance in range(1, self._world_size):
            to, source = (rank + distance) % self._world_size, (rank - distance) % self._world_size
            receiving, sending = self.group.recv([received[source]], source, 0), self.group.send([sent[to]], to, 0)
            receiving.wait()
            sending.wait()

    def _broadcast(self, data: torch.Tensor, root: int) -> None:
        moved = self._on_device(data)
        dist.broadcast(moved, src=dist.get_global_rank(self.group, root), group=self.group)
        _copy_back(data, moved)

    def _on_device(self, host: torch.Tensor) -> torch.Tensor:
        """Where the backend can read it; the same tensor where that is the host."""
        return host.to(self._device)

    def _room_for(self, host: torch.Tensor) -> torch.Tensor:
        """Where the backend can write what _copy_back() then brings to ``host``."""
        return host if self._device.type == "cpu" else torch.empty_like(host, device=self._device)


def device_of(group: dist.ProcessGroup) -> torch.device:
    """The device whose tensors the group's backend takes: the host where it can, else the current CUDA device."""
    config = dist.get_backend_config(group)
    return torch.device("cpu") if "cpu:" in config else torch.device("cuda", torch.cuda.current_device())


def ordered_keys(values: torch.Tensor) -> torch.Tensor:
    """int32 keys in the order of float32 values; NaN is above all."""
    bits = values.view(torch.int32)
    return torch.where(bits < 0, bits ^ _GREATEST, bits).masked_fill_(values.isnan(), _GREATEST)


def from_ordered_keys(keys: torch.Tensor) -> torch.Tensor:
    """The float32 values that had these keys."""
    return torch.where(keys < 0, keys ^ _GREATEST, keys).view(torch.float32)


def _copy_back(host: torch.Tensor, moved: torch.Tensor) -> None:
    """Copies to the host unless the memory is the same. From a device, copy_() waits for what the device still does."""
    if moved is not host:
        host.copy_(moved)
