"""FSDP2 on a mesh of one dimension: thinwire is the reduce-scatter, in which every worker sends each other one that one's part of its
gradients, compressed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from thinwire.torch import checkpoint, statistics
from thinwire.torch.fully_sharded import FullyShardedModel, GatheredGroup, ShardGroup, check_length
from thinwire.torch.model_parameters import Travelling, TravellingParameters
from thinwire.torch.shard_attachment import ShardAttachment

if TYPE_CHECKING:
    from thinwire.torch.gathered_parameters import GatheredParameters


class ScatteredShards(ShardAttachment):
    """Residuals are of what a worker sends: of the whole parameters' size."""

    def __init__(self, sharded: FullyShardedModel, *arguments: Any, gathered: "GatheredParameters | None"):
        super().__init__(sharded, sharded.shard_group, *arguments)
        self._gathered = gathered  # None: FSDP gathers parameters as they are
        self._replaced: dict[int, Any] = {}
        first = 0
        for group in sharded.groups:
            self._replaced[id(group)] = group.replace_reduce_scatter(_ReduceScatter(self, group, first))
            first += len(group.names)
            if self._world_size == 1:
                group.hook_alone(lambda _: self._reduce([]))
        if gathered is not None:
            gathered.plug(self._lanes)

    def close(self) -> None:
        if self._gathered is not None and self._close_lanes.alive:
            self._gathered.unplug()
        super().close()

    def stats(self) -> dict[str, Any]:
        """As Attachment.stats(); where parameters are gathered compressed, also gathered: the same of these, but for steps, and without what
        the first gather sent, which is exact."""
        if self._gathered is None:
            return super().stats()
        return super().stats() | {"gathered": statistics.figures(self._gathered.counters(), self._steps)}

    @property
    def compressors(self) -> dict[str, str]:
        return {name.rpartition("@")[0]: spec for name, spec in super().compressors.items()}

    def scatter(self, group: ShardGroup, first: int, rows: torch.Tensor, own: torch.Tensor, op: dist.ReduceOp) -> None:
        """own <- this worker's row of the means, or of what ``op`` makes of them. rows: flat [workers, row], of which nothing is left."""
        places = [first + place for place in group.reducing]
        indices = [place * self._world_size + owner for owner in range(self._world_size) for place in places]
        check_length(rows.numel(), sum(self._parameters.elements[index] for index in indices))
        self._reduce([(rows, indices)])
        own.copy_(rows.view(self._world_size, -1)[self._rank])
        if op == dist.ReduceOp.SUM:
            own.mul_(self._world_size)
        elif op != dist.ReduceOp.AVG:  # PREMUL_SUM, by what the script has set
            own.mul_(self._world_size / group.divide_factor)

    def _agree(self, failed: bool) -> bool:
        # All know of gradients that are not finite, and only its owner of a mean that its type cannot hold.
        return self._lanes.greatest([float(failed)])[0] > 0

    def _rows(self) -> list[checkpoint.Row]:
        return super()._rows() + ([] if self._gathered is None else self._gathered.state())

    def _division(self) -> checkpoint.Division:
        division = super()._division()
        return checkpoint.Division(division.hosts, division.parts + ([] if self._gathered is None else self._gathered.parts))

    def _load_rows(self, rows: list[checkpoint.Row], parts: list[checkpoint.Part], state: dict[str, Any]) -> None:
        own = len(self._parameters.names)
        before = self._reducer.state()
        super()._load_rows(rows[:own], parts[:own], state)
        if self._gathered is None:
            return
        try:
            self._gathered.load(rows[own:])
        except BaseException:
            self._reducer.load_state(before)
            raise

    def _unplug(self, group: ShardGroup) -> None:
        group.replace_reduce_scatter(self._replaced[id(group)])
        if self._world_size == 1:
            group.hook_alone(None)


class _ReduceScatter:
    """What set_custom_reduce_scatter() is given, one for each group. FSDP calls it by keyword and wants the result when it returns: it
    drops what is returned to wait for."""

    def __init__(self, attachment: ScatteredShards, group: ShardGroup, first: int):
        self._attachment, self._group, self._first = attachment, group, first

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, op: dist.ReduceOp, async_op: bool = False
    ) -> None:
        self._attachment.scatter(self._group, self._first, input_tensor, output_tensor, op)


class RowParameters(TravellingParameters):
    """Each worker's part of every parameter, under its name and ``@`` and the worker's number."""

    def __init__(self, sharded: FullyShardedModel, groups: Sequence[ShardGroup | GatheredGroup], dtype: torch.dtype | None = None):
        """dtype: as which all travel; None: as their groups have them."""
        workers = range(sharded.shards)
        super().__init__(
            [
                Travelling(f"{name}@{owner}", shape, dtype or group.dtype, group.device)
                for group in groups
                for name, shape in zip(group.names, group.row_shapes, strict=True)
                for owner in workers
            ],
            sharded.names_in_model,
        )
        self.owners = [owner for group in groups for _ in group.names for owner in workers]

    def rules_here(self, rules: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return [(f"{pattern}@*", spec) for pattern, spec in rules]
