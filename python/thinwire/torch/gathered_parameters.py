"""FSDP2 on a mesh of one dimension: parameters are gathered by how much they have changed since the last time, compressed.

Every worker keeps what it has got of all parameters so far, W~ in QSDP's (Markov et al., ICML 2023) and SDP4Bit's (Jia et al., NeurIPS 2024) terms;
a shard's owner sends C(w - W~), and all, the owner among them, add what that decodes to. So all compute with the same parameters, W~, and what a
code loses is in the next difference: no residual is needed. The optimizer's parameters, w, are exact.
"""

from collections.abc import Sequence
from glob import escape as glob_escape
from typing import Any

import torch
import torch.distributed as dist

from thinwire import _native
from thinwire._native import ArgumentError, StateError
from thinwire.torch import checkpoint
from thinwire.torch.agreement import make_reducer
from thinwire.torch.fully_sharded import FullyShardedModel, GatheredGroup
from thinwire.torch.lanes import BucketJob, Lanes
from thinwire.torch.model_parameters import REDUCERS_TYPES
from thinwire.torch.scattered_shards import RowParameters

_ROW = "gathered:"  # begins the names of saved rows


class GatheredParameters:
    """At work until unplug(). Its collectives go the way of FSDP's, in the lane of the gradients', one after another."""

    def __init__(self, sharded: FullyShardedModel, rows: RowParameters, reducer: _native.Reducer):
        self._reducer, self._device = reducer, sharded.gathered[0].device
        self._gathers: list[_AllGather] = []
        group, workers, first = sharded.shard_group, sharded.shards, 0
        for gathered in sharded.gathered:
            # By owner, as they lie in what FSDP gathers.
            places = range(first, first + len(gathered.names))
            self._gathers.append(_AllGather(gathered, group, reducer, [place * workers + owner for owner in range(workers) for place in places]))
            first += len(gathered.names)
        self._own = [index for index, owner in enumerate(rows.owners) if owner == dist.get_rank(group)]

    def plug(self, lanes: Lanes) -> None:
        room = torch.empty(max(gather.elements for gather in self._gathers), dtype=torch.float32, device=self._device)
        for gather in self._gathers:
            gather.plug(lanes, room)

    def unplug(self) -> None:
        for gather in self._gathers:
            gather.unplug()

    @property
    def parts(self) -> list[tuple[int, int]]:
        return self._reducer.parts

    def counters(self) -> dict[str, Any]:
        return self._reducer.counters()

    def state(self) -> list[checkpoint.Row]:
        """With what all have got of this worker's own parameters in place of a residual."""
        got = [part for gather in self._gathers for part in gather.got()]
        rows = [[_ROW + name, *rest] for name, *rest in self._reducer.state()]
        for index, part in zip(self._own, got, strict=True):
            rows[index][2] = part.numpy()
        return [tuple(row) for row in rows]

    def load(self, rows: list[checkpoint.Row]) -> None:
        """Raises StateError, and changes nothing."""
        own = iter([torch.from_numpy(rows[index][2]) for index in self._own])
        got = [[next(own) for _ in gather.names] for gather in self._gathers]
        for gather, parts in zip(self._gathers, got, strict=True):
            gather.check(parts)
        self._reducer.load_state([(name.removeprefix(_ROW), steps, residual[:0], memory) for name, steps, residual, memory in rows])
        for gather, parts in zip(self._gathers, got, strict=True):
            gather.begin_with(parts)


def gathered_rows(sharded: FullyShardedModel) -> RowParameters:
    """Of differences, which are float32. Raises ArgumentError."""
    for group in sharded.gathered:
        _check(group)
    return RowParameters(sharded, sharded.gathered, torch.float32)


def gathering_reducer(
    sharded: FullyShardedModel, rows: RowParameters, spec: str, *, seed: int, threads: int, measure_every: int
) -> _native.Reducer:
    """What is small goes as it is. Raises ArgumentError."""
    small = [(glob_escape(name), "none") for gathered in sharded.gathered for name in gathered.small_names()]
    return make_reducer(
        rows,
        sharded.shard_group,
        spec,
        small,
        small_uncompressed=False,  # what is small, whole parameters say, and not their shards
        seed=seed,
        lanes=1,
        threads=threads,
        measure_every=measure_every,
        owners=rows.owners,
        from_owners=True,
    )


class _AllGather:
    """What set_custom_all_gather() is given, one for each group. FSDP lets allocate() say where to gather, writes this worker's part there, and
    calls it by keyword; it copies the result away before it gathers the group again."""

    def __init__(self, gathered: GatheredGroup, group: dist.ProcessGroup, reducer: _native.Reducer, indices: list[int]):
        self._gathered, self._group, self._reducer, self._indices = gathered, group, reducer, indices
        self._workers = dist.get_world_size(group)
        self.elements = self._workers * sum(gathered.row_elements)
        self._all: torch.Tensor | None = None  # what all workers have got
        self._known = False  # whether it is that, but for this worker's part, into which FSDP writes
        self._own: torch.Tensor | None = None  # this part; where nothing is known, that of a saved state
        self._lanes: Lanes | None = None
        self._room: torch.Tensor | None = None  # for changes; all groups', one after another

    @property
    def names(self) -> list[str]:
        return self._gathered.names

    def plug(self, lanes: Lanes, room: torch.Tensor) -> None:
        self._lanes, self._room = lanes, room
        self._before = self._gathered.replace_all_gather(self)
        # Parameters that a script loads are no small change of what they were.
        self._hook = self._gathered.module.register_load_state_dict_post_hook(lambda *_: self._forget())

    def unplug(self) -> None:
        self._hook.remove()
        self._gathered.replace_all_gather(self._before)
        self._all = self._own = self._lanes = self._room = None

    def got(self) -> list[torch.Tensor]:
        """What all have got of this worker's part, parameter by parameter; empty where that is nothing."""
        if self._own is None:
            return [torch.empty(0) for _ in self.names]
        return [part.clone() for part in self._own.detach().float().cpu().split(self._gathered.row_elements)]

    def check(self, parts: list[torch.Tensor]) -> None:
        """Raises StateError for what got() cannot have returned."""
        lengths, own = [part.numel() for part in parts], self._gathered.row_elements
        if any(lengths) and lengths != own:
            raise StateError(f"the saved state has {lengths} elements of what all had got of {self.names}; this worker's parts have {own}")

    def begin_with(self, parts: list[torch.Tensor]) -> None:
        self._known = False
        own = torch.cat(parts)
        self._own = own.to(self._gathered.device, self._gathered.dtype) if own.numel() else None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if self._gathered.is_of_fewer:
            return torch.empty(*size, dtype=dtype, device=device)
        if self._all is None:
            with torch.inference_mode(False):  # it is written to in every mode
                self._all = torch.empty(*size, dtype=dtype, device=device)
        return self._all

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        if output_tensor is not self._all:
            return dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
        with torch.inference_mode(False), torch.no_grad():
            self._gather(input_tensor)
        return None

    def _gather(self, own: torch.Tensor) -> None:
        """own: this worker's part of what is gathered, as FSDP has just written it."""
        if self._known and self._gathered.goes_back:  # parameters are as they were in the forward pass
            own.copy_(self._own)
            return
        exact = own.clone()
        if not self._known:
            begins = self._own is None
            if begins:
                self._own = exact
            own.copy_(self._own)
            self._gather_as_it_is(own)
            if begins:
                return
        self._add_changes(exact, own)

    def _gather_as_it_is(self, own: torch.Tensor) -> None:
        dist.all_gather_single(self._all, own, group=self._group)
        self._known = True

    def _add_changes(self, exact: torch.Tensor, own: torch.Tensor) -> None:
        changes = self._room[: self.elements].zero_()
        rank = dist.get_rank(self._group)
        torch.sub(exact, self._own, out=changes.view(self._workers, -1)[rank])
        job = BucketJob(self._reducer, False, changes, self._indices, 1.0)
        self._lanes.submit(0, job)
        job.wait()
        job.check()
        if changes[:1].isnan().any():  # not finite at some worker, as all are told: what is wrong shall be seen
            own.copy_(exact)
            self._gather_as_it_is(own)
            self._forget()
            return
        own.copy_(self._own)
        self._all.add_(changes)
        self._own.copy_(own)

    def _forget(self) -> None:
        if self._known:
            self._known, self._own = False, None


def _check(group: GatheredGroup) -> None:
    if group.dtype not in REDUCERS_TYPES:
        raise ArgumentError(
            f"gathers, for {type(group.module).__name__}, of which FSDP gathers {group.dtype or 'several types together'}; thinwire takes "
            f"{', '.join(map(str, REDUCERS_TYPES))}. Leave gathers away, or give all of a module one type (MixedPrecisionPolicy(param_dtype=))"
        )
    if group.has_custom_all_gather:
        raise ArgumentError(f"{type(group.module).__name__} has an all-gather of its own already, and FSDP allows one; leave gathers away")
